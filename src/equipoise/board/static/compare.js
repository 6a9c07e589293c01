// Several runs, overlaid or side by side, on one x.
"use strict";
EQ.kinds.compare = class {
  static needs = ["notes"];

  constructor(section, key) {
    this.section = section;
    this.key = key;
    this.found = (selector) => section.querySelector(selector);
    this.all = (selector) => [...section.querySelectorAll(selector)];
    this.range = this.source("x");
    for (const input of this.all("[data-state]")) {
      const name = input.dataset.state;
      input.addEventListener(input.type === "range" ? "input" : "change", () => {
        this.set(name, input.type === "checkbox" ? input.checked : input.value === "0" ? "" : input.value);
        if (name === "x" || name === "logx") this.zoomed = false;
        this.redraw();
      });
    }
    for (const button of this.all("[data-do]")) button.addEventListener("click", () => this[button.dataset.do]());
    this.range.connect(this.range.change, () => { this.zoomed = this.range.start !== this.range.reset_start || this.range.end !== this.range.reset_end; });
    EQ.whenChanged(this.source("notes"), () => setTimeout(() => this.redraw(), 0));
    this.redraw();
  }
  source(name) { return EQ.model(`${this.key}-${name}`); }
  get(name, otherwise) { return EQ.state.get(`c.${name}`, otherwise); }
  set(name, value) { EQ.state.set(`c.${name}`, value); }
  get hiddenRuns() { return new Set((this.get("hide", "") || "").split(",").filter(Boolean).map(Number)); }

  redraw() {
    const c = EQ.curves;
    this.notes = JSON.parse(c.column(this.source("notes"), "json")[0]);
    const hidden = this.hiddenRuns;
    this.runs = this.notes.runs.map((r, i) => ({ ...r, i, color: EQ.color(i), off: hidden.has(i) }));
    const on = this.runs.filter((r) => !r.off);
    this.words();
    this.x = this.get("x", "step");
    const tokens = on.length > 0 && on.every((r) => c.column(this.part(r, "logged"), "tokens") ?? c.column(this.part(r, "axis"), "tokens"));
    this.found('[data-state="x"] [value="tokens"]').hidden = !tokens;
    if (this.x === "tokens" && !tokens) this.x = "step";
    this.logx = this.get("logx") === "1";
    this.logy = this.get("logy") === "1";
    this.amount = Math.min(0.99, Number(this.get("smooth", 0)) || 0);
    this.layout = this.get("layout", "over");
    for (const place of this.all("[data-layout]")) place.hidden = place.dataset.layout !== this.layout;
    const names = [...new Set(this.runs.flatMap((r) => Array.from(c.column(this.part(r, "layers"), "name") ?? [])))];
    this.layer = this.pick("layer", names, this.notes.chosen);
    for (const input of this.all("[data-state]")) {
      if (input.type === "checkbox") input.checked = this.get(input.dataset.state) === "1";
      else if (input.type === "range") input.value = this.amount;
    }
    this.found('[data-state="x"]').value = this.x;
    this.found('[data-state="layout"]').value = this.layout;
    for (const place of this.all("[data-layer-name]")) {
      place.textContent = this.notes.short[this.layer] ?? "";
      place.title = this.layer ?? "";
    }
    this.longest = Math.max(0, ...on.flatMap((r) => ["axis", "logged"].map((p) => Array.from(c.column(this.part(r, p), "time") ?? []).pop() ?? 0)));
    const all = on.flatMap((r) => ["axis", "settings", "logged"].flatMap((p) => c.xOf(this.part(r, p), this.x, this.longest))).filter((v) => Number.isFinite(v) && (!this.logx || v > 0));
    this.low = all.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!all.length) [this.low, this.high] = [this.logx ? 1 : 0, 2];
    c.extent(this.range, this.logx ? this.low : this.low < 0.05 * this.high ? 0 : this.low, this.high, this.zoomed);
    this.layout === "side" ? this.side() : this.over(on);
  }
  part(run, name) { return EQ.model(`${this.notes.beside[run.i] ?? `${this.key}-${run.i}`}-${name}`); }
  pick(name, possible, first) {
    const select = this.found(`[data-state="${name}"]`);
    if ([...select.options].map((o) => o.value).join("\n") !== possible.join("\n")) select.replaceChildren(...possible.map((p) => EQ.el("option", { value: p, title: p }, (name === "layer" ? this.notes.short : this.notes.labels)[p] ?? p)));
    const wanted = this.get(name, first);
    select.value = possible.includes(wanted) ? wanted : possible[0] ?? "";
    return possible.includes(wanted) ? wanted : possible[0];
  }
  axes(names) {
    for (const name of names) {
      const figure = this.source(name);
      EQ.curves.scale(figure, "x", this.logx);
      if (!name.startsWith("heat")) EQ.curves.scale(figure, "y", this.logy);
      figure.below[0].axis_label = EQ.curves.xLabel(this.x, this.longest);
    }
  }
  get options() { return { logx: this.logx, logy: this.logy, amount: this.amount }; }
  columns(on, name, test) { return [...new Set(on.flatMap((r) => Object.keys(this.part(r, name)?.data ?? {}).filter(test)))]; }

  over(on) {
    const c = EQ.curves;
    this.axes(["logged", "schedule", "norm", "rotation", "effective", "radial"]);
    const logged = this.pick("logged", this.columns(on, "logged", (k) => k.startsWith("v:")).map((k) => k.slice(2)));
    const values = (r, name, column) => c.column(this.part(r, name), column);
    c.fill(`${this.key}-logged`, on.map((r) => ({ ...r, xs: c.xOf(this.part(r, "logged"), this.x, this.longest), ys: values(r, "logged", `v:${logged}`), low: values(r, "logged", `l:${logged}`), high: values(r, "logged", `h:${logged}`) })).filter((v) => v.ys), this.options);
    this.source("logged").left[0].axis_label = EQ.plain(logged ?? "");
    const schedule = this.pick("schedule", ["lr", "weight_decay", "init_share", "memory"].filter((q) => this.columns(on, "settings", (k) => k.startsWith(q + "/")).length));
    const lines = on.flatMap((r) => this.columns([r], "settings", (k) => k.startsWith(schedule + "/")).sort().map((k) => ({ ...r, name: `${r.name}, group ${k.split("/")[1]}`, xs: c.xOf(this.part(r, "settings"), this.x, this.longest), ys: values(r, "settings", k) })));
    c.fill(`${this.key}-schedule`, lines, { ...this.options, amount: 0 });
    this.source("schedule").left[0].axis_label = this.notes.labels[schedule] ?? "";
    const of = (q) => on.map((r) => ({ ...r, xs: this.xs(r), ys: this.line(r, q), dashed: this.line(r, `${q}_forecast`) })).filter((v) => v.ys);
    for (const name of ["norm", "rotation"]) c.fill(`${this.key}-${name}`, of(name), this.options);
    for (const [name, possible] of [["effective", ["relative_update", "effective_lr"]], ["radial", ["radial_decay", "grad_weight_cos", "c_err", "grad_norm", "angle"]]]) {
      const there = new Set(this.columns(on, "layers", () => true));
      const q = this.pick(name, possible.filter((p) => there.has(p)));
      c.fill(`${this.key}-${name}`, q ? of(q).map((v) => ({ ...v, dashed: null })) : [], this.options);
      this.source(name).left[0].axis_label = this.notes.labels[q] ?? "";
    }
  }
  xs(r) { return EQ.curves.xOf(this.part(r, "axis"), this.x, this.longest); }
  line(r, q) {
    const i = Array.from(EQ.curves.column(this.part(r, "layers"), "name") ?? []).indexOf(this.layer);
    return i < 0 ? null : EQ.curves.line(this.part(r, "layers"), q, i);
  }

  side() {
    const c = EQ.curves;
    const union = [...new Set(this.runs.flatMap((r) => { const layers = this.part(r, "layers"); return EQ.matrices(layers).map((i) => c.column(layers, "name")[i]); }))];
    const against = this.pick("against", this.notes.forecast ? ["forecast", "layers"] : ["layers"]);
    this.found('[data-state="against"]').closest("label").hidden = !this.notes.forecast;
    const ys = [];
    for (const r of this.runs) {
      const card = this.found(`[data-run="${r.i}"]`);
      card.hidden = r.off;
      card.querySelector("[data-sentence]").textContent = this.sentence(r);
      this.axes([`side${r.i}`, `heat${r.i}`]);
      const y = this.line(r, "rotation");
      if (!r.off && y) ys.push(...Array.from(y).filter((v) => Number.isFinite(v) && v > 0));
      c.fill(`${this.key}-side${r.i}`, y ? [{ ...r, name: this.layer, xs: this.xs(r), ys: y, dashed: null }] : [], { ...this.options, fixed: true });
      this.source(`side${r.i}`).left[0].axis_label = "rotation";
      const mine = Array.from(c.column(this.part(r, "layers"), "name") ?? []);
      card.querySelector("[data-heat-title]").textContent = `Rotation of each layer relative to ${EQ.against[against]}`;
      EQ.heat(`${this.key}-heat${r.i}`, this.part(r, "layers"), { xs: this.xs(r), low: this.low, high: this.high, logx: this.logx, against, rows: union.map((n) => mine.indexOf(n)), names: union.map((n) => (mine.includes(n) ? this.notes.short[n] : "")), marks: [[union.indexOf(this.layer), r.color]].filter(([at]) => at >= 0) });
    }
    // The same scale in every card, or there is nothing to compare.
    const low = Math.min(...ys), high = Math.max(...ys);
    if (ys.length) this.source("level").setv({ start: this.logy ? low / 1.1 : 0, end: high * 1.08 });
  }

  words() {
    this.found("[data-runs]").replaceChildren(...this.runs.map((r) => {
      const box = EQ.el("input", { type: "checkbox", checked: !r.off, onchange: () => {
        const hidden = this.hiddenRuns;
        hidden.has(r.i) ? hidden.delete(r.i) : hidden.add(r.i);
        this.set("hide", [...hidden].join(","));
        this.redraw();
      } });
      return EQ.el("li", {}, EQ.el("label", {}, box, EQ.el("span", { class: "dot", style: `background:${r.color}` }), EQ.el("strong", {}, r.name), EQ.el("span", { class: "pill", "data-status": r.status }, r.status)), EQ.el("span", { class: "hint" }, this.sentence(r)));
    }));
    const loading = this.found('[data-when="loading"]');
    loading.hidden = !this.notes.loading;
    loading.textContent = this.notes.loading ?? "";
    this.losses();
    const same = this.get("same") === "1";
    const rows = this.notes.settings.filter((s) => s.differs || same);
    const on = this.runs.filter((r) => !r.off);
    this.found("[data-settings]").replaceChildren(
      EQ.el("tr", {}, EQ.el("th"), ...on.map((r) => EQ.el("th", { scope: "col" }, r.name))),
      ...rows.map((s) => EQ.el("tr", s.differs ? { class: "differs" } : {}, EQ.el("th", { scope: "row" }, s.name), ...on.map((r) => EQ.el("td", {}, s.values[r.i])))));
  }
  reset() {
    this.zoomed = false;
    this.range.setv({ start: this.range.reset_start, end: this.range.reset_end });
  }
  sentence(r) { return this.notes.loading ? r.sentence : `${r.sentence} ${r.tally}`; }
  losses() {
    const columns = this.notes.losses, on = this.runs.filter((r) => !r.off);
    this.found("[data-losses-card]").hidden = !columns.length;
    const cell = ({ text, gap, title, best }) => EQ.el("td", { class: best ? "differs" : null, title }, text, gap ? EQ.el("span", { class: "hint" }, ` (${gap})`) : null);
    this.found("[data-losses]").replaceChildren(
      EQ.el("tr", {}, EQ.el("th"), ...columns.map((c) => EQ.el("th", { scope: "col" }, c.name))),
      ...on.map((r) => EQ.el("tr", {}, EQ.el("th", { scope: "row" }, EQ.el("span", { class: "dot", style: `background:${r.color}` }), r.name), ...columns.map((c) => cell(c.cells[r.i])))));
  }
  csv() {
    const rows = [["run", "layer", "quantity", "step", "value"]], c = EQ.curves;
    for (const r of this.runs.filter((run) => !run.off)) {
      const steps = c.column(this.part(r, "axis"), "step") ?? [];
      for (const q of Object.keys(this.part(r, "layers").data)) {
        const ys = this.line(r, q);
        if (ys) for (let k = 0; k < steps.length; k++) if (Number.isFinite(ys[k])) rows.push([r.name, this.layer, q, steps[k], ys[k]]);
      }
      const logged = this.part(r, "logged"), at = c.column(logged, "step") ?? [];
      for (const q of Object.keys(logged.data).filter((k) => k.startsWith("v:"))) for (let k = 0; k < at.length; k++) if (Number.isFinite(logged.data[q][k])) rows.push([r.name, "", q.slice(2), at[k], logged.data[q][k]]);
    }
    EQ.download("compare.csv", EQ.csv(rows));
  }
};
