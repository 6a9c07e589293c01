// The page of a run. Python sends numbers (sources key-layers, key-axis, …); what is drawn of them is decided here, so
// that a file and a live page behave the same.
"use strict";
EQ.kinds.run = class {
  static needs = ["notes", "layers", "axis", "settings", "logged", "spectra", "spectra-axis", "remembered", "passes", "passes-axis"];

  constructor(section, key) {
    this.section = section;
    this.key = key;
    this.prefix = key === "run" ? "" : `${key}.`;
    this.range = EQ.model(`${key}-x`);
    this.found = (selector) => section.querySelector(selector);
    this.all = (selector) => [...section.querySelectorAll(selector)];
    this.wire();
    for (const name of this.constructor.needs) {
      EQ.whenChanged(this.source(name), () => this.soon());
    }
    this.redraw();
  }

  source(name) { return EQ.model(`${this.key}-${name}`); }
  get(name, otherwise) { return EQ.state.get(this.prefix + name, otherwise); }
  set(name, value) { EQ.state.set(this.prefix + name, value); }

  // Several sources change together when a live run grows: draw once.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => { this.waiting = false; this.redraw(); }, 0);
  }

  wire() {
    for (const input of this.all("[data-state]")) {
      const name = input.dataset.state;
      input.addEventListener(input.type === "range" ? "input" : "change", () => {
        this.set(name, input.type === "checkbox" ? input.checked : input.value === "0" ? "" : input.value);
        if (name === "x" || name === "logx") this.zoomed = false;
        this.redraw();
        if (name === "x" || name === "logx") this.reset();
      });
    }
    for (const button of this.all("[data-do]")) button.addEventListener("click", () => this[button.dataset.do]());
    this.found("[data-pattern]")?.addEventListener("keydown", (e) => { if (e.key === "Enter") this.add(); });
    const heat = EQ.model(`${this.key}-heat`);
    // Two quick clicks on two rows are a double one to Bokeh.
    for (const event of ["tap", "doubletap"]) heat?.on_event(event, (e) => { const at = this.rowAt(e.y); if (at != null) this.toggle(at.name); });
    heat?.on_event("mousemove", (e) => this.tip(e));
    heat?.on_event("mouseleave", () => { this.found("[data-tip]").hidden = true; });
    const watch = () => { this.zoomed = this.range.start !== this.range.reset_start || this.range.end !== this.range.reset_end; };
    this.range?.connect(this.range.change, watch);
  }

  // What is chosen

  get names() { return Array.from(EQ.curves.column(this.source("layers"), "name") ?? []); }
  get chosen() {
    const kept = this.get("layers");
    if (kept == null) return this.notes.chosen ?? [];
    const known = new Set(this.names);
    try { return JSON.parse(kept).filter((n) => known.has(n)); } catch { return []; }
  }
  choose(names) {
    const list = [...new Set(names)].slice(0, 24);
    this.set("layers", JSON.stringify(list));
    this.redraw();
  }
  toggle(name) {
    const now = this.chosen;
    this.choose(now.includes(name) ? now.filter((n) => n !== name) : [...now, name]);
  }
  matching() {
    const text = this.found("[data-pattern]").value.trim();
    const said = this.found("[data-said]");
    if (!text) { said.textContent = "Type a part of a name, or a pattern."; return []; }
    let test = (n) => n.includes(text);
    if (!this.names.some(test)) {
      try { const pattern = new RegExp(text.replaceAll("**", ".*")); test = (n) => pattern.test(n); } catch { test = () => false; }
    }
    const found = this.names.filter(test);
    said.textContent = found.length ? `${found.length} of ${this.names.length} match${found.length > 24 ? "; the first 24 are drawn" : ""}` : "No name matches.";
    return found;
  }
  add() { const found = this.matching(); if (found.length) this.choose([...this.chosen, ...found]); }
  only() { const found = this.matching(); if (found.length) this.choose(found); }
  clear() { this.choose([]); }
  reset() {
    this.zoomed = false;
    this.range?.setv({ start: this.range.reset_start, end: this.range.reset_end });
    const heat = EQ.model(`${this.key}-heat`);
    if (heat) heat.y_range.setv({ start: this.shownRows.length - 0.5, end: -0.5 });
  }

  // Drawing

  redraw() {
    this.notes = JSON.parse(EQ.curves.column(this.source("notes"), "json")[0]);
    this.words();
    const some = (EQ.curves.column(this.source("axis"), "step")?.length ?? 0) + (EQ.curves.column(this.source("logged"), "step")?.length ?? 0) > 0;
    for (const part of this.all('[data-when="rows"]')) part.hidden = !some || (part.dataset.after === "loading" && !!this.notes.loading && !this.notes.findings.length);
    if (!some) return;
    const c = EQ.curves;
    const axis = this.source("axis"), logged = this.source("logged");
    const has = c.column(logged, "tokens") != null || c.column(axis, "tokens") != null;
    this.found('[data-state="x"] [value="tokens"]').hidden = !has;
    this.x = this.get("x", "step");
    if (this.x === "tokens" && !has) this.x = "step";
    this.logx = this.get("logx") === "1";
    this.logy = this.get("logy") === "1";
    this.amount = Math.min(0.99, Number(this.get("smooth", 0)) || 0);
    this.syncControls();
    const times = [...(c.column(axis, "time") ?? []), ...(c.column(logged, "time") ?? [])];
    this.longest = times.reduce((a, b) => Math.max(a, b), 0);
    this.xs = c.xOf(axis, this.x, this.longest);
    const all = [...this.xs, ...c.xOf(logged, this.x, this.longest), ...c.xOf(this.source("settings"), this.x, this.longest)].filter((v) => Number.isFinite(v) && (!this.logx || v > 0));
    const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    c.extent(this.range, this.logx ? low : low < 0.05 * high ? 0 : low, high, this.zoomed);
    for (const name of ["loss", "schedule", "heat", "norm", "rotation", "effective", "radial", "spectrum", "forward", "memory"]) {
      const figure = EQ.model(`${this.key}-${name}`);
      c.scale(figure, "x", this.logx);
      if (name !== "heat") c.scale(figure, "y", this.logy && name !== "memory");
      figure.below[0].axis_label = c.xLabel(this.x, this.longest);
    }
    this.drawLoss();
    this.drawSchedule();
    this.drawHeat(low, high);
    this.drawLayers();
    this.drawForward();
    this.drawMemory();
  }

  get options() { return { logx: this.logx, logy: this.logy, amount: this.amount }; }
  picked(name, possible, first = possible[0]) {
    const select = this.found(`[data-state="${name}"]`);
    const labels = this.notes.labels;
    const old = [...select.options].map((o) => o.value).join("\n");
    if (old !== possible.join("\n")) select.replaceChildren(...possible.map((p) => EQ.el("option", { value: p }, labels[p] ?? p)));
    const wanted = this.get(name, first);
    const now = possible.includes(wanted) ? wanted : possible[0];
    select.value = now ?? "";
    (select.closest("label") ?? select).hidden = possible.length < 2;
    return now;
  }
  drawLoss() {
    const logged = this.source("logged");
    const possible = Object.keys(logged.data).filter((k) => k.startsWith("v:")).map((k) => k.slice(2));
    const name = this.picked("logged", possible);
    const xs = EQ.curves.xOf(logged, this.x, this.longest);
    const part = (p) => EQ.curves.column(logged, `${p}:${name}`);
    const curves = name == null ? [] : [{ name, color: EQ.color(0), xs, ys: part("v"), low: part("l"), high: part("h") }];
    EQ.curves.fill(`${this.key}-loss`, curves, this.options);
    EQ.model(`${this.key}-loss`).left[0].axis_label = EQ.plain(name ?? "");
  }
  drawSchedule() {
    const source = this.source("settings"), xs = EQ.curves.xOf(source, this.x, this.longest);
    const columns = Object.keys(source.data).filter((k) => k.includes("/"));
    const possible = ["lr", "weight_decay", "init_share", "memory"].filter((q) => columns.some((k) => k.startsWith(q + "/")));
    const name = this.picked("schedule", possible);
    const mine = columns.filter((k) => k.startsWith(name + "/")).sort();
    const curves = mine.map((k, i) => ({ name: `group ${k.split("/")[1]}`, color: EQ.color(i), xs, ys: EQ.curves.column(source, k) }));
    EQ.curves.fill(`${this.key}-schedule`, curves, { ...this.options, amount: 0 });
    EQ.model(`${this.key}-schedule`).left[0].axis_label = this.notes.labels[name] ?? "";
  }
  drawLayers() {
    const layers = this.source("layers"), spectra = this.source("spectra"), names = this.names, c = EQ.curves;
    const chosen = this.chosen.map((name, k) => ({ name, i: names.indexOf(name), color: EQ.color(k) }));
    const of = (quantity, more) => chosen
      .map(({ name, i, color }) => ({ name, color, xs: this.xs, ys: c.line(layers, quantity, i), ...more?.(i) }))
      .filter((curve) => curve.ys != null);
    for (const name of ["norm", "rotation"]) {
      const more = (i) => ({ dashed: c.line(layers, `${name}_forecast`, i), low: c.line(layers, `${name}_low`, i), high: c.line(layers, `${name}_high`, i) });
      c.fill(`${this.key}-${name}`, of(name, more), this.options);
    }
    const measured = new Set(Object.keys(layers.data));
    for (const [name, possible] of [["effective", ["relative_update", "effective_lr"]], ["radial", ["radial_decay", "grad_weight_cos", "c_err", "grad_norm", "angle"]]]) {
      const quantity = this.picked(name, possible.filter((q) => measured.has(q)));
      c.fill(`${this.key}-${name}`, quantity ? of(quantity) : [], this.options);
      EQ.model(`${this.key}-${name}`).left[0].axis_label = this.notes.labels[quantity] ?? "";
    }
    const quantity = this.picked("spectrum", Object.keys(spectra.data).filter((q) => spectra.data[q].shape?.length === 2));
    const xs = c.xOf(this.source("spectra-axis"), this.x, this.longest);
    const lines = quantity == null ? [] : chosen.map(({ name, i, color }) => ({ name, color, xs, ys: c.line(spectra, quantity, i) }));
    c.fill(`${this.key}-spectrum`, lines, { ...this.options, amount: 0 });
    EQ.model(`${this.key}-spectrum`).left[0].axis_label = this.notes.labels[quantity] ?? "";
    // Spectra take turns, so that a short run may have one of a layer, which makes no line.
    const there = lines.map(({ name, ys }) => [name, Array.from(ys ?? []).map((y, k) => [xs[k], y]).filter(([, y]) => Number.isFinite(y))]);
    const once = there.filter(([, points]) => points.length === 1).map(([name, [[x, y]]]) => `${EQ.number(y)} of ${name} at ${this.x} ${EQ.number(x)}`);
    const drawn = there.some(([, points]) => points.length > 1);
    const few = once.length ? ` Measured once: ${once.join(", ")}.` : drawn || !chosen.length ? "" : " Not measured yet; spectra=10 measures them at each 10th measured step.";
    this.found("[data-spectrum-words]").textContent = `Singular values of the chosen matrices.${few}`;
    const none = this.found("[data-chips]");
    none.replaceChildren(...chosen.map(({ name, color, i }) => {
      const shape = EQ.curves.column(layers, "shape")[i];
      const dot = EQ.el("span", { class: "dot", style: `background:${color}` });
      return EQ.el("button", { type: "button", class: "chip", "data-name": name, title: `${name}, ${shape}: click to remove`, onclick: () => this.toggle(name) }, dot, c.column(layers, "short")[i], EQ.el("span", { class: "x", "aria-hidden": "true" }, "×"));
    }));
    if (!chosen.length) none.append(EQ.el("span", { class: "hint" }, "None yet: click a row of the heatmap, or add by pattern."));
  }
  // Modules, coloured where a chosen layer is in them, with the range of their heads.
  drawForward() {
    const source = this.source("passes"), c = EQ.curves;
    const rows = Array.from(c.column(source, "name") ?? [], (n) => n.split(" "));
    const possible = [...new Set(rows.map(([quantity]) => quantity))];
    this.found("[data-forward]").hidden = !possible.length;
    const quantity = this.picked("forward", possible);
    if (quantity == null) return;
    const xs = c.xOf(this.source("passes-axis"), this.x, this.longest);
    const colorOf = (place) => {
      const k = this.chosen.findIndex((tensor) => tensor === place || !place || tensor.startsWith(`${place}.`));
      return k < 0 ? null : EQ.color(k);
    };
    const mine = rows.map(([q, ...place], i) => ({ q, i, name: place.join(" ") })).filter(({ q }) => q === quantity);
    const curves = mine.map(({ i, name }) => {
      const color = colorOf(name), band = color != null && { low: c.line(source, "low", i), high: c.line(source, "high", i) };
      return { name: name || "model", color: color ?? EQ.css("--faint"), xs, ys: c.line(source, "value", i), ...band };
    });
    curves.sort((a, b) => (a.color === EQ.css("--faint") ? 0 : 1) - (b.color === EQ.css("--faint") ? 0 : 1));
    c.fill(`${this.key}-forward`, curves, this.options);
    EQ.model(`${this.key}-forward`).left[0].axis_label = this.notes.labels[quantity] ?? "";
    const what = { attention_logit: " Band: from the lowest to the highest head.", attention_entropy: " 1: a query looks at all keys alike; 0: at one. Band: from the lowest to the highest head.", expert_load: " Times an equal share. Band: all experts." }[quantity] ?? "";
    this.found("[data-forward-words]").textContent = `One line for each module; those that chosen layers are in are coloured.${what}`;
  }
  drawMemory() {
    const source = this.source("remembered");
    const xs = EQ.curves.xOf(source, this.x, this.longest);
    const ys = Array.from(EQ.curves.column(source, "share") ?? []);
    const curves = ys.length ? [{ name: "contribution", color: EQ.color(0), xs, ys, low: ys.map(() => 0), high: ys }] : [];
    EQ.curves.fill(`${this.key}-memory`, curves, { logx: this.logx });
  }

  // The heatmap: columns at even distances of whatever x is, each showing the measured step nearest to it.
  drawHeat(low, high) {
    const layers = this.source("layers"), c = EQ.curves;
    this.shownRows = this.get("vectors") === "1" ? this.names.map((_, i) => i) : EQ.matrices(layers);
    const rows = this.shownRows, names = this.names, short = c.column(layers, "short");
    const marks = this.chosen.map((n, k) => [rows.indexOf(names.indexOf(n)), EQ.color(k)]).filter(([r]) => r >= 0);
    const against = this.picked("against", this.notes.forecast ? ["forecast", "layers"] : ["layers"], this.notes.against ?? undefined);
    this.heatPicks = EQ.heat(`${this.key}-heat`, layers, { xs: this.xs, low, high, logx: this.logx, rows, names: rows.map((i) => short[i]), marks, against });
    this.against = EQ.against[against];
    this.found("[data-heat-title]").textContent = `Which layer is off: rotation relative to ${this.against}`;
    const slow = against === "forecast" ? "Blue rotates too slowly, orange too fast." : "Blue rotates more slowly than the median layer, orange faster.";
    const why = this.notes.forecast || this.notes.loading ? "" : this.notes.finetune ? "Pretrained weights have no forecast. " : "This run has no forecast. ";
    this.found("[data-heat-words]").textContent = `${slow} ${why}Click a row to choose it.`;
  }
  rowAt(y) {
    const r = Math.round(y);
    if (!this.shownRows || r < 0 || r >= this.shownRows.length) return null;
    return { name: this.names[this.shownRows[r]], i: this.shownRows[r] };
  }
  tip(e) {
    const tip = this.found("[data-tip]"), at = this.rowAt(e.y), h = this.heatPicks;
    if (at == null || h == null || !(e.x >= h.low && e.x <= h.high)) { tip.hidden = true; return; }
    const x = this.logx ? Math.log(e.x) : e.x;
    const k = h.picks[Math.min(h.picks.length - 1, Math.max(0, Math.floor(((x - h.a) / (h.b - h.a)) * h.picks.length)))];
    const value = (q) => EQ.curves.line(this.source("layers"), q, at.i)?.[k];
    const step = EQ.curves.column(this.source("axis"), "step")[k];
    const ratio = h.ratios[Math.round(e.y)]?.[k];
    tip.replaceChildren(EQ.el("b", {}, at.name), EQ.el("br"), `step ${EQ.number(step, 8)}: rotation ${EQ.number(value("rotation"))}, ${EQ.number(ratio, 3)} × ${this.against}`);
    tip.hidden = false;
    const width = tip.parentElement.clientWidth;
    tip.style.left = `${Math.min(e.sx + 14, Math.max(0, width - tip.offsetWidth - 8))}px`;
    tip.style.top = `${e.sy + 16}px`;
  }

  // Words

  words() {
    const n = this.notes;
    for (const place of this.all("[data-note]")) place.textContent = n[place.dataset.note] ?? "";
    const pill = this.found("[data-status]");
    pill.textContent = n.status;
    pill.dataset.status = n.status;
    const loading = this.found('[data-when="loading"]');
    loading.hidden = !n.loading;
    loading.textContent = n.loading ?? "";
    const error = this.found('[data-when="error"]');
    error.hidden = !n.error;
    error.textContent = n.error ?? "";
    this.found("[data-facts]").replaceChildren(...n.facts.map(([k, v]) => EQ.el("div", {}, EQ.el("dt", {}, k), EQ.el("dd", {}, v))));
    this.found("[data-norm-words]").textContent = `Band: 10 to 90 % of neurons, times √rows.${n.forecast ? " Dashed: the forecast." : ""}`;
    this.found("[data-rotation-words]").textContent = `Angle by which each step rotates the weights.${n.forecast ? " Dashed: the forecast." : ""} Band: 10 to 90 % of neurons.`;
    EQ.findings(this.found("[data-findings]"), n.findings, (tensor) => {
      this.choose([tensor, ...this.chosen]);
      this.found(".chosen").scrollIntoView({ behavior: "smooth" });
    }, n.verdict, n.clear);
    const list = this.found("datalist");
    if (list.children.length !== this.names.length) list.replaceChildren(...this.names.map((value) => EQ.el("option", { value })));
    if (document.querySelectorAll("section.page").length < 3) document.title = `${n.name} · ${n.status} · equipoise`;
  }
  syncControls() {
    for (const input of this.all("[data-state]")) {
      const value = this.get(input.dataset.state);
      if (input.type === "checkbox") input.checked = value === "1";
      else if (input.type === "range") input.value = value ?? 0;
      else if (input.dataset.state === "x") input.value = this.x;
    }
  }
  csv() {
    const rows = [["layer", "quantity", "step", "value"]], layers = this.source("layers"), axis = this.source("axis");
    const steps = EQ.curves.column(axis, "step") ?? [];
    for (const name of this.chosen) {
      const i = this.names.indexOf(name);
      for (const q of Object.keys(layers.data)) {
        const ys = EQ.curves.line(layers, q, i);
        if (ys) for (let k = 0; k < steps.length; k++) if (Number.isFinite(ys[k])) rows.push([name, q, steps[k], ys[k]]);
      }
    }
    const logged = this.source("logged"), at = EQ.curves.column(logged, "step") ?? [];
    for (const q of Object.keys(logged.data).filter((k) => k.startsWith("v:"))) {
      const ys = EQ.curves.column(logged, q);
      for (let k = 0; k < at.length; k++) if (Number.isFinite(ys[k])) rows.push(["", q.slice(2), at[k], ys[k]]);
    }
    EQ.download(`${this.notes.name.replace(/[^\w.-]+/g, "_")}.csv`, EQ.csv(rows));
  }
};
