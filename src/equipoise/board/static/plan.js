// The page of a plan. Live: knobs go to the server, which computes. In a file: lr and weight decay choose a plan of the
// grid that Python computed. No equation is known here.
"use strict";
EQ.kinds.plan = class {
  static needs = ["notes", "curves", "control"];

  constructor(section, key) {
    this.section = section;
    this.key = key;
    this.found = (selector) => section.querySelector(selector);
    this.notes = this.read();
    this.live = this.notes.live;
    this.range = this.source("x");
    this.knobs = { ...this.notes.knobs };
    for (const name of Object.keys(this.knobs)) {
      const kept = EQ.state.get(name);
      if (kept != null) this.knobs[name] = typeof this.knobs[name] === "number" ? Number(kept) : kept;
    }
    try { this.pinned = JSON.parse(EQ.state.get("pin", "null")); } catch { this.pinned = null; }
    this.build();
    for (const input of section.querySelectorAll("[data-state]")) {
      input.checked = EQ.state.get(input.dataset.state) === "1";
      input.addEventListener("change", () => { EQ.state.set(input.dataset.state, input.checked); this.zoomed = false; this.redraw(); });
    }
    for (const button of section.querySelectorAll("[data-do]")) button.addEventListener("click", () => this[button.dataset.do]());
    this.found("[data-pin]").addEventListener("click", () => { this.pinned = { ...this.knobs }; this.changed(); });
    this.found("[data-unpin]").addEventListener("click", () => { this.pinned = null; this.changed(); });
    this.found("[data-link]").addEventListener("click", (e) => EQ.copy(location.href, e.target));
    EQ.whenChanged(this.source("notes"), () => this.soon());
    EQ.whenChanged(this.source("curves"), () => this.soon());
    this.range.connect(this.range.change, () => { this.zoomed = this.range.start !== this.range.reset_start || this.range.end !== this.range.reset_end; });
    if (this.live && (JSON.stringify(this.knobs) !== JSON.stringify(this.notes.knobs) || this.pinned)) this.send();
    this.redraw();
  }
  source(name) { return EQ.model(`${this.key}-${name}`); }
  read() { return JSON.parse(EQ.curves.column(this.source("notes"), "json")[0]); }
  soon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.redraw(), 0);
  }

  // Knobs

  build() {
    const grid = this.notes.grid;
    const specs = this.live ? this.notes.spec : [
      { name: "lr", label: "learning rate", kind: "grid", values: grid.lr },
      { name: "weight_decay", label: "weight decay", kind: "grid", values: grid.weight_decay },
    ];
    this.found("[data-knobs]").replaceChildren(...specs.map((s) => this.knob(s)));
    const kept = Object.entries(this.notes.kept ?? {});
    this.found("[data-kept]").replaceChildren(...kept.map(([k, v]) => EQ.el("div", {}, EQ.el("dt", {}, k), EQ.el("dd", {}, v))));
    if (!this.live) this.found("[data-kept]").after(EQ.el("p", { class: "hint" }, "This file holds plans for other values of these two only. Use `equipoise board` to change every setting."));
  }
  knob(s) {
    const id = `${this.key}-knob-${s.name}`;
    if (s.kind === "choice") {
      const select = EQ.el("select", { id, "data-knob": s.name }, ...s.values.map(([value, label]) => EQ.el("option", { value }, label)));
      select.value = this.knobs[s.name];
      select.addEventListener("change", () => this.turn(s.name, select.value));
      return EQ.el("div", { class: "knob" }, EQ.el("label", { for: id }, s.label), select);
    }
    // The slider moves evenly in what people think in: decades, nines of a beta, steps of a grid.
    const [to, from, step] = {
      log: [(v) => Math.log10(Math.max(v, s.min)), (p) => Number((10 ** p).toPrecision(2)), 0.02],
      count: [(v) => Math.log10(1 + v), (p) => Math.round(Number((10 ** p - 1).toPrecision(2))), 0.01],
      beta: [(v) => -Math.log10(1 - Math.min(v, s.max)), (p) => Number((1 - 10 ** -p).toFixed(p > 2.5 ? 5 : p > 1.5 ? 4 : 3)), 0.01],
      linear: [(v) => v, (p) => Number(p), 0.01],
      grid: [(v) => this.nearest(s.values, v), (p) => s.values[p], 1],
    }[s.kind];
    const ends = s.kind === "grid" ? [0, s.values.length - 1] : [to(s.min), to(s.max)];
    const slider = EQ.el("input", { type: "range", id, "data-knob": s.name, min: ends[0], max: ends[1], step });
    const text = EQ.el("input", { type: "text", inputmode: "decimal", "aria-label": `${s.label}, exactly`, "data-exact": s.name, readonly: s.kind === "grid" });
    const show = () => { slider.value = to(this.knobs[s.name]); text.value = this.say(this.knobs[s.name]); slider.setAttribute("aria-valuetext", text.value); };
    slider.addEventListener("input", () => { this.turn(s.name, from(Number(slider.value))); text.value = this.say(this.knobs[s.name]); });
    text.addEventListener("change", () => {
      const value = Number(text.value.replaceAll(",", ""));
      if (text.value.trim() && Number.isFinite(value) && value >= 0) this.turn(s.name, s.kind === "count" ? Math.round(value) : value);
      show();
    });
    show();
    return EQ.el("div", { class: "knob" }, EQ.el("label", { for: id }, s.label), text, slider);
  }
  say(x) { return Number.isInteger(x) && x >= 1000 ? x.toLocaleString("en") : x !== 0 && (x < 1e-3 || x >= 1e6) ? x.toExponential().replace("e+", "e") : String(x); }
  nearest(values, v) { return values.reduce((best, x, i) => (Math.abs(Math.log(x / v || 1)) < Math.abs(Math.log(values[best] / v || 1)) ? i : best), 0); }
  turn(name, value) {
    this.knobs[name] = value;
    this.changed();
  }
  changed() {
    const start = this.notes.knobs, plain = this.live ? Object.fromEntries(this.notes.spec.map((s) => [s.name, s.start])) : start;
    for (const [name, value] of Object.entries(this.knobs)) EQ.state.set(name, value === plain[name] ? "" : this.text(value));
    EQ.state.set("pin", this.pinned ? JSON.stringify(this.pinned) : "");
    if (this.live) this.send();
    else this.redraw();
  }
  text(value) { return value === 0 ? "0.0" : value; }
  send() {
    // One question at a time: a slider that moves asks again when the answer is there.
    if (this.asked) { this.again = true; return; }
    this.asked = true;
    this.source("control").data = { json: [JSON.stringify({ knobs: this.knobs, pinned: this.pinned, count: (this.count = (this.count ?? 0) + 1) })] };
    clearTimeout(this.patience);
    this.patience = setTimeout(() => { this.asked = false; }, 3000);
  }
  answered() {
    this.asked = false;
    if (this.again) { this.again = false; this.send(); }
  }
  row(knobs) {
    const { lr, weight_decay } = this.notes.grid;
    return this.nearest(lr, knobs.lr) * weight_decay.length + this.nearest(weight_decay, knobs.weight_decay);
  }

  // Drawing

  redraw() {
    this.notes = this.read();
    if (this.live && this.notes.count === this.count) this.answered();
    const rows = this.live ? [0, ...(this.notes.rows.length > 1 ? [1] : [])] : [this.row(this.knobs), ...(this.pinned ? [this.row(this.pinned)] : [])];
    const [now, other] = rows.map((r) => this.notes.rows[r]);
    this.found("[data-error]").textContent = this.notes.error ?? "";
    this.found("[data-error]").hidden = !this.notes.error;
    this.found("[data-title]").textContent = now.title;
    document.title = `${now.title} · equipoise`;
    this.found("[data-unpin]").hidden = !this.pinned;
    this.found("[data-legend]").replaceChildren(...[now, other].filter(Boolean).map((r, i) => EQ.el("span", { class: "key" }, EQ.el("span", { class: "dot", style: `background:${EQ.color(i)}` }), `${i ? "pinned" : "this"}: ${r.title}`)));
    if (this.notes.left) this.label("left", ...this.notes.left);
    this.drawCurves(rows);
    this.numbers(now, other);
    this.texts(now);
    EQ.findings(this.found("[data-findings]"), now.findings);
    this.found("[data-assumptions]").textContent = now.assumptions.length ? `Assumed: ${now.assumptions.join("; ")}.` : "";
  }
  label(name, title, words, axis) {
    const figure = EQ.model(`${this.key}-${name}`), caption = this.found(`[data-curve="${name}"] figcaption`);
    caption.querySelector("h3").textContent = title;
    caption.querySelector("p").textContent = words;
    if (figure.left[0].axis_label !== axis) figure.left[0].axis_label = axis;
  }
  drawCurves(rows) {
    const c = EQ.curves, source = this.source("curves"), logx = EQ.state.get("logx") === "1", logy = EQ.state.get("logy") === "1";
    const xs = rows.map((r) => c.line(source, "step", r));
    c.extent(this.range, logx ? 1 : 0, Math.max(...xs.map((x) => x[x.length - 1])), this.zoomed);
    for (const name of ["lr", "effective", "rms", "rotation", "share", "left"]) {
      const curves = rows.map((r, i) => {
        const ys = c.line(source, name, r);
        return { name: i ? "pinned" : "this", color: EQ.color(i), xs: xs[i], ys, ...(name === "share" && !i ? { low: ys.map(() => 0), high: ys } : {}) };
      });
      c.scale(this.source(name), "x", logx);
      c.scale(this.source(name), "y", logy);
      c.fill(`${this.key}-${name}`, curves, { logx, logy });
    }
  }
  numbers(now, other) {
    const line = (r, i, label) => EQ.el("tr", {}, EQ.el("th", { scope: "row" }, EQ.el("span", { class: "dot", style: `background:${EQ.color(i)}` }), label),
      ...now.summary.map(([k, v]) => {
        const value = new Map(r.summary).get(k) ?? "–";
        return EQ.el("td", other && new Map(other.summary).get(k) !== v ? { class: "differs" } : {}, value);
      }));
    this.found("[data-numbers]").replaceChildren(
      EQ.el("tr", {}, EQ.el("th"), ...now.summary.map(([k]) => EQ.el("th", { scope: "col" }, k))),
      line(now, 0, "this"), ...(other ? [line(other, 1, "pinned")] : []));
  }
  texts(now) {
    const names = { code: "code", toml: "TOML", command: "command" };
    const kinds = Object.keys(now.texts);
    this.kind = kinds.includes(this.kind) ? this.kind : kinds[0];
    this.found("[data-text]").textContent = now.texts[this.kind];
    this.found("[data-copies]").replaceChildren(...kinds.map((kind) => EQ.el("button", {
      type: "button", "data-copy": kind, "aria-pressed": String(kind === this.kind),
      onclick: (e) => { this.kind = kind; this.found("[data-text]").textContent = now.texts[kind]; EQ.copy(now.texts[kind], e.target); },
    }, `Copy as ${names[kind]}`)));
  }
  reset() {
    this.zoomed = false;
    this.range.setv({ start: this.range.reset_start, end: this.range.reset_end });
  }
  csv() {
    const rows = [["setting", "step", "lr", "effective_lr", "rms", "rotation", "batch_share", this.notes.finetune ? "distance" : "init_left"]], source = this.source("curves");
    const shown = this.live ? this.notes.rows.map((_, r) => r) : [this.row(this.knobs), ...(this.pinned ? [this.row(this.pinned)] : [])];
    for (const r of shown) {
      const columns = ["step", "lr", "effective", "rms", "rotation", "share", "left"].map((q) => EQ.curves.line(source, q, r));
      for (let k = 0; k < columns[0].length; k++) rows.push([this.notes.rows[r].title, ...columns.map((c) => c[k])]);
    }
    EQ.download("plan.csv", EQ.csv(rows));
  }
};
