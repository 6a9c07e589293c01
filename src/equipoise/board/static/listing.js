// The list of runs. The server filters, sorts and writes the numbers, with the same words as `equipoise runs`; what is asked
// for is kept in the address. Names and values of runs are text, never HTML.
"use strict";
(() => {
  const found = (selector) => document.querySelector(selector);
  const chosen = new Set(), UP_LAST = new Set(["changed", "started", "steps"]); // the largest first
  let told = null, asked = 0, timer = null;

  const address = (names) => "?" + names.map((n) => `run=${encodeURIComponent(n)}`).join("&");
  const columns = () => (EQ.state.get("columns", "") || "").split(",").filter(Boolean).map(decodeURIComponent);
  const setColumns = (names) => {
    const same = told && names.join("\n") === told.shown.join("\n");
    EQ.state.set("columns", same ? "" : names.map(encodeURIComponent).join(","));
    ask();
  };

  function curve(values) {
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
  const DRAWN = {
    status: (text) => [EQ.el("span", { class: "pill", "data-status": text }, text)],
    tags: (tags) => tags.map((t) => EQ.el("button", { type: "button", class: "tag", title: `only runs with the tag ${t}`, onclick: () => narrow(/\s/.test(t) ? `tags="${t}"` : `tags=${t}`) }, t)),
    findings: (counts) => Object.entries(counts).filter(([, n]) => n).map(([s, n]) => EQ.el("span", { class: `count ${["error", "warning"].includes(s) ? s : "info"}`, title: s }, `${n} ${s}${n > 1 && s !== "info" ? "s" : ""}`)),
    curve: (values) => [curve(values)],
  };
  function row(r) {
    const box = EQ.el("input", { type: "checkbox", checked: chosen.has(r.name), "aria-label": `compare ${r.name}`, onchange: (e) => { e.target.checked ? chosen.add(r.name) : chosen.delete(r.name); button(); } });
    const cells = told.columns.map((c, i) => {
      if (c.name === "name") return EQ.el("td", { class: "name" }, EQ.el("a", { href: "run" + address([r.name]) }, r.name), r.error ? EQ.el("div", { class: "error-text" }, r.error) : null);
      const drawn = r.cells[i] === "…" ? null : DRAWN[c.name];
      return EQ.el("td", { class: c.number ? "num" : c.name === "changed" || c.name === "started" ? "hint" : null }, ...(drawn ? drawn(r.cells[i]) : [r.cells[i]]));
    });
    return EQ.el("tr", {}, EQ.el("td", {}, box), ...cells);
  }
  function head(c) {
    const label = c.name === "name" ? "run" : c.name;
    const says = ["loss", "validation"].includes(c.name) ? EQ.el("span", { class: "hint" }, c.says) : null;
    if (c.name === "curve") return EQ.el("th", { scope: "col", title: c.says }, label);
    const up = told.sort === c.name, down = told.sort === `-${c.name}`;
    const next = up ? `-${c.name}` : down ? c.name : UP_LAST.has(c.name) ? `-${c.name}` : c.name;
    const sort = EQ.el("button", { type: "button", class: "sort", "data-sort": c.name, title: c.says || null, onclick: () => { EQ.state.set("sort", next === "-changed" ? "" : next); ask(); } }, label, EQ.el("span", { "aria-hidden": "true" }, up ? " ▲" : down ? " ▼" : ""));
    return EQ.el("th", { scope: "col", class: c.number ? "num" : null, "aria-sort": up ? "ascending" : down ? "descending" : "none" }, sort, says);
  }
  function picker() {
    const now = told.columns.map((c) => c.name), words = found("[data-pick-search]").value.toLowerCase();
    const titles = { run: "of every run", logged: "logged, the last value", meta: "meta" };
    const groups = Object.entries(titles).map(([group, title]) => {
      const mine = told.known.filter((k) => k.group === group && k.name !== "name" && k.name.toLowerCase().includes(words)).slice(0, 200);
      return mine.length ? EQ.el("fieldset", {}, EQ.el("legend", {}, title), ...mine.map((k) => EQ.el("label", { class: "check", title: k.says || null }, EQ.el("input", { type: "checkbox", "data-column": k.name, checked: now.includes(k.name), onchange: (e) => setColumns(e.target.checked ? [...now, k.name] : now.filter((n) => n !== k.name)) }), k.name))) : null;
    });
    found("[data-columns]").replaceChildren(...groups.filter(Boolean));
  }
  function outcomes(lines) {
    found("[data-outcomes]").hidden = !lines.length;
    const said = (o) => Object.entries(o.verdicts ?? {}).map(([verdict, n]) => EQ.el("span", { class: "pill", "data-verdict": verdict }, `${n} ${{ agrees: "agree", differs: "differ" }[verdict] ?? verdict}`));
    found("[data-outcome-rows]").replaceChildren(...lines.map((o) => EQ.el("tr", {},
      EQ.el("td", { class: "name" }, EQ.el("a", { href: `outcome?at=${encodeURIComponent(o.name)}` }, o.experiment ?? o.name), EQ.el("div", { class: o.error ? "error-text" : "hint" }, o.error ?? o.name)),
      EQ.el("td", { class: "word" }, o.preset ?? ""), EQ.el("td", {}, ...said(o)), EQ.el("td", { class: "hint" }, o.date ?? ""))));
  }
  function draw() {
    const at = document.activeElement, same = (s) => [s, at?.getAttribute(s)];
    const [attribute, value] = ["aria-label", "data-sort", "data-column"].map(same).find(([, v]) => v != null) ?? [];
    found("[data-heads]").replaceChildren(EQ.el("th"), ...told.columns.map(head));
    found("[data-rows]").replaceChildren(...told.rows.map(row));
    picker();
    outcomes(told.outcomes);
    if (attribute && !at.isConnected) [...document.querySelectorAll(`[${attribute}]`)].find((e) => e.getAttribute(attribute) === value)?.focus();
    const n = (x) => x.toLocaleString("en");
    const parts = [told.fits === told.total ? `${n(told.total)} run${told.total === 1 ? "" : "s"}` : `${n(told.fits)} of ${n(told.total)} runs`];
    if (told.running) parts.push(`${n(told.running)} running`);
    if (told.unread) parts.push(`reading: ${n(told.total - told.unread)} of ${n(told.total)} so far`);
    found("[data-sentence]").textContent = told.total ? `${parts.join(", ")}.` : "No runs here yet. eq.watch(model, optimizer, path) writes one.";
    found("[data-wrong]").hidden = !told.wrong;
    found("[data-wrong]").textContent = told.wrong;
    const more = found("[data-more]");
    more.hidden = told.rows.length >= told.fits;
    more.textContent = `Show all ${n(told.fits)}`;
    button();
  }
  function button() {
    const b = found("[data-compare]");
    b.disabled = chosen.size < 2;
    b.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }
  async function ask() {
    clearTimeout(timer);
    const mine = ++asked, words = new URLSearchParams();
    for (const name of ["columns", "sort", "filter", "most"]) if (EQ.state.get(name)) words.set(name, EQ.state.get(name));
    try {
      const answer = await fetch(`api/runs?${words}`), text = await answer.text();
      if (mine !== asked) return; // another question was asked since
      if (answer.ok && text !== ask.last) { ask.last = text; told = JSON.parse(text); draw(); }
    } catch { if (mine === asked) found("[data-sentence]").textContent = "The board does not answer; was it stopped?"; }
    if (mine === asked) timer = setTimeout(ask, told?.unread ? 100 : 2000);
  }
  function narrow(words) {
    const field = found("[data-filter]"), now = field.value.trim();
    if (!now.split(/\s+/).includes(words)) field.value = `${now} ${words}`.trim();
    EQ.state.set("filter", field.value);
    ask();
  }
  const read = () => { found("[data-filter]").value = EQ.state.get("filter", ""); ask(); };
  found("[data-filter]").addEventListener("input", (e) => { EQ.state.set("filter", e.target.value); clearTimeout(timer); timer = setTimeout(ask, 80); });
  found("[data-pick-search]").addEventListener("input", picker);
  found("[data-usual]").addEventListener("click", () => setColumns([]));
  found("[data-more]").addEventListener("click", () => { EQ.state.set("most", 5000); ask(); });
  found("[data-compare]").addEventListener("click", () => { location.href = "compare" + address([...chosen]); });
  document.addEventListener("click", (e) => { if (!e.composedPath().includes(found(".picker"))) found(".picker").open = false; });
  document.addEventListener("keydown", (e) => { if (e.key === "Escape") found(".picker").open = false; });
  EQ.begin();
  addEventListener("hashchange", read);
  read();
})();
