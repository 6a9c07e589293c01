// Findings as cards: what was found, its curve, and what to do.
"use strict";
EQ.findings = (place, findings, show, verdict = "No problems found.", clear = true) => {
  const text = JSON.stringify([findings, verdict, clear]);
  if (place.dataset.shown === text) return; // a card that somebody has opened stays open
  place.dataset.shown = text;
  const sign = { error: "✕", warning: "!", info: "i" };
  if (!findings.length) {
    place.replaceChildren(EQ.el("p", { class: "fine" }, EQ.el("span", { class: `sign ${clear ? "ok" : "info"}`, "aria-hidden": "true" }, clear ? "✓" : "?"), verdict));
    return;
  }
  place.replaceChildren(...findings.map((f) => {
    const head = EQ.el("div", { class: "finding-head" },
      EQ.el("span", { class: `sign ${f.severity in sign ? f.severity : "info"}`, "aria-hidden": "true" }, sign[f.severity] ?? "i"),
      EQ.el("strong", {}, f.code), EQ.el("span", { class: "severity" }, f.severity));
    const words = EQ.el("div", { class: "finding-words" }, head,
      EQ.el("p", {}, EQ.el("span", { class: "where" }, f.where), f.evidence ? `: ${f.evidence}.` : ""),
      EQ.el("p", { class: "advice" }, `→ ${f.advice}`),
      f.paid ? EQ.el("p", { class: "paid" }, `paid: ${f.paid}`) : null,
      EQ.el("p", { class: "source" }, `expected: ${f.expected} · ${f.source}`));
    if (f.plot?.tensor && show) words.append(EQ.el("button", { type: "button", class: "quiet", onclick: () => show(f.plot.tensor) }, "Show in the plots"));
    return EQ.el("article", { class: `card finding ${f.severity}` }, words, f.plot ? (f.plot.lanes ? EQ.lanes(f.plot) : EQ.spark(f.plot)) : null);
  }));
};

// A small curve with its forecast, as SVG: light enough for forty of them.
EQ.spark = (plot) => {
  const NS = "http://www.w3.org/2000/svg", W = 240, H = 84, PAD = 4;
  const svg = (tag, attributes) => {
    const made = document.createElementNS(NS, tag);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    return made;
  };
  const values = [...plot.y, ...(plot.forecast ?? [])].filter((v) => v != null);
  const low = Math.min(...values), high = Math.max(...values), first = plot.x[0], last = plot.x[plot.x.length - 1];
  const logarithmic = low > 0 && high / low > 30;
  const scale = (v) => (logarithmic ? Math.log(v) : v);
  const x = (v) => PAD + ((W - 2 * PAD) * (v - first)) / (last - first || 1);
  const y = (v) => H - PAD - ((H - 2 * PAD) * (scale(v) - scale(low))) / (scale(high) - scale(low) || 1);
  const path = (ys) => ys.map((v, i) => (v == null ? "" : `${i && ys[i - 1] != null ? "L" : "M"}${x(plot.x[i]).toFixed(1)} ${y(v).toFixed(1)}`)).join("");
  const said = `${plot.label}, from ${EQ.number(low, 3)} to ${EQ.number(high, 3)}${plot.forecast ? "; dashed: the forecast" : ""}`;
  const drawn = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": said, preserveAspectRatio: "none", tabindex: "0" });
  drawn.append(svg("path", { d: path(plot.y), class: "measured" }));
  if (plot.forecast) drawn.append(svg("path", { d: path(plot.forecast), class: "forecast" }));
  const rule = svg("path", { class: "rule" }), plain = said + (logarithmic ? " (log)" : ""), words = EQ.el("p", { "aria-live": "polite" }, plain);
  drawn.append(rule);
  let at = null; // the point whose values are said, by mouse or arrow keys
  const point = (k) => {
    at = k;
    rule.setAttribute("d", k == null ? "" : `M${x(plot.x[k]).toFixed(1)} 0V${H}`);
    const value = (v) => (v == null ? "–" : EQ.number(v, 3));
    words.textContent = k == null ? plain : `step ${plot.x[k].toLocaleString("en")}: ${plot.label} ${value(plot.y[k])}${plot.forecast ? `, forecast ${value(plot.forecast[k])}` : ""}`;
  };
  const nearest = (place) => plot.x.reduce((best, v, i) => (Math.abs(x(v) - place) < Math.abs(x(plot.x[best]) - place) ? i : best), 0);
  drawn.addEventListener("pointermove", (e) => { const box = drawn.getBoundingClientRect(); point(nearest((W * (e.clientX - box.left)) / box.width)); });
  for (const event of ["pointerleave", "blur"]) drawn.addEventListener(event, () => point(null));
  drawn.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!step) return;
    e.preventDefault();
    point(Math.min(plot.x.length - 1, Math.max(0, (at ?? (step > 0 ? -1 : plot.x.length)) + step)));
  });
  return EQ.el("div", { class: "spark" }, drawn, words);
};

// Events in the order in which they happened, a lane each: the mark reaches from the last step at which all was as usual.
EQ.lanes = (plot) => {
  const first = Math.min(...plot.lanes.map((e) => e.after)), last = Math.max(...plot.lanes.map((e) => e.step));
  const place = (step) => (100 * (step - first)) / (last - first || 1);
  const rows = plot.lanes.map((e) => {
    const mark = EQ.el("span", { class: "mark" });
    mark.style.left = `${place(e.after)}%`;
    mark.style.width = `${place(e.step) - place(e.after)}%`;
    return EQ.el("li", { title: e.said, class: e.name === "loss" ? "loss" : "" },
      EQ.el("span", { class: "name" }, e.name), EQ.el("span", { class: "track", "aria-hidden": "true" }, mark),
      EQ.el("span", { class: "at" }, e.step.toLocaleString("en")));
  });
  const more = plot.more ? EQ.el("p", {}, `and ${plot.more} more`) : null;
  return EQ.el("div", { class: "lanes" }, EQ.el("ol", {}, ...rows), EQ.el("p", {}, `steps ${first.toLocaleString("en")} to ${last.toLocaleString("en")}, the first one on top`), more);
};
