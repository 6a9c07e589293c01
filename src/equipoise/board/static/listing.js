// The list of runs: asked for again every two seconds, searched and sorted here.
"use strict";
(() => {
  const found = (selector) => document.querySelector(selector);
  const chosen = new Set();
  let runs = [];

  const ago = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s ago` : seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`);
  const address = (names) => "?" + names.map((n) => `run=${encodeURIComponent(n)}`).join("&");
  const order = {
    newest: (a, b) => b.changed - a.changed,
    name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
    loss: (a, b) => (a.loss ?? Infinity) - (b.loss ?? Infinity),
    steps: (a, b) => (b.steps ?? 0) - (a.steps ?? 0),
  };

  function spark(values) {
    if (!values || values.length < 2) return "";
    const low = Math.min(...values), high = Math.max(...values), NS = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(NS, "svg"), path = document.createElementNS(NS, "path");
    svg.setAttribute("viewBox", "0 0 100 24");
    svg.setAttribute("class", "small-spark");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", values.map((v, i) => `${i ? "L" : "M"}${((100 * i) / (values.length - 1)).toFixed(1)} ${(22 - (20 * (v - low)) / (high - low || 1)).toFixed(1)}`).join(""));
    svg.append(path);
    return svg;
  }
  function row(r) {
    const box = EQ.el("input", { type: "checkbox", checked: chosen.has(r.name), "aria-label": `compare ${r.name}`, onchange: (e) => { e.target.checked ? chosen.add(r.name) : chosen.delete(r.name); button(); } });
    const odd = EQ.el("td", {}, ...Object.entries(r.findings ?? {}).filter(([, n]) => n).map(([s, n]) => EQ.el("span", { class: `count ${["error", "warning"].includes(s) ? s : "info"}`, title: s }, `${n} ${s === "info" ? "note" : s}${n > 1 ? "s" : ""}`)));
    const state = r.status ? EQ.el("span", { class: "pill", "data-status": r.status }, r.status) : "…";
    return EQ.el("tr", {}, EQ.el("td", {}, box), EQ.el("td", { class: "name" }, EQ.el("a", { href: "run" + address([r.name]) }, r.name), r.error ? EQ.el("div", { class: "error-text" }, r.error) : r.optimizer ? EQ.el("div", { class: "hint" }, r.optimizer) : null),
      EQ.el("td", {}, state), EQ.el("td", { class: "num" }, r.steps ? r.steps.toLocaleString("en") : ""), EQ.el("td", { class: "num", title: r.loss_text ? `${r.loss_name}: last ${r.last_text}${r.best_text ? `; best ${r.best_name} ${r.best_text} at step ${r.best_step}` : ""}` : "" }, r.loss_text ?? ""), EQ.el("td", {}, spark(r.spark)), odd, EQ.el("td", { class: "hint" }, ago(r.age)));
  }
  function outcomes(lines) {
    found("[data-outcomes]").hidden = !lines.length;
    const told = (o) => Object.entries(o.verdicts ?? {}).map(([verdict, n]) => EQ.el("span", { class: "pill", "data-verdict": verdict }, `${n} ${{ agrees: "agree", differs: "differ" }[verdict] ?? verdict}`));
    found("[data-outcome-rows]").replaceChildren(...lines.map((o) => EQ.el("tr", {},
      EQ.el("td", { class: "name" }, EQ.el("a", { href: `outcome?at=${encodeURIComponent(o.name)}` }, o.experiment ?? o.name), EQ.el("div", { class: o.error ? "error-text" : "hint" }, o.error ?? o.name)),
      EQ.el("td", { class: "word" }, o.preset ?? ""), EQ.el("td", {}, ...told(o)), EQ.el("td", { class: "hint" }, o.date ?? ""))));
  }
  function draw() {
    const words = found("[data-search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter((r) => words.every((w) => `${r.name} ${r.optimizer ?? ""} ${r.status ?? ""}`.toLowerCase().includes(w))).sort(order[found("[data-sort]").value]);
    found("[data-rows]").replaceChildren(...shown.slice(0, 500).map(row));
    const running = runs.filter((r) => r.status === "running").length;
    const hidden = shown.length > 500 ? " The first 500 are listed." : "";
    found("[data-sentence]").textContent = !runs.length ? "No runs here yet. eq.watch(model, optimizer, path) writes one." : `${shown.length === runs.length ? runs.length : `${shown.length} of ${runs.length}`} run${runs.length === 1 ? "" : "s"}${running ? `, ${running} of them on the way` : ""}.${hidden}`;
    button();
  }
  function button() {
    const b = found("[data-compare]");
    b.disabled = chosen.size < 2;
    b.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }
  async function ask() {
    try {
      const answer = await fetch("api/runs");
      const active = document.activeElement?.closest?.("[data-rows]");
      const text = await answer.text();
      if (answer.ok && !active && text !== ask.last) { ask.last = text; const told = JSON.parse(text); runs = told.runs; outcomes(told.outcomes); draw(); }
    } catch { found("[data-sentence]").textContent = "The board does not answer; was it stopped?"; }
    setTimeout(ask, 2000);
  }
  found("[data-search]").value = EQ.state.get("q", "");
  found("[data-sort]").value = EQ.state.get("sort", "newest");
  found("[data-search]").addEventListener("input", (e) => { EQ.state.set("q", e.target.value); draw(); });
  found("[data-sort]").addEventListener("change", (e) => { EQ.state.set("sort", e.target.value); draw(); });
  found("[data-compare]").addEventListener("click", () => { location.href = "compare" + address([...chosen]); });
  EQ.begin();
  ask();
})();
