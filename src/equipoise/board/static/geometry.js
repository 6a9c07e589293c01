// The triangle of a step: lengths come from Python, here they are laid out and labelled.
"use strict";
EQ.kinds.geometry = class {
  static needs = ["notes", "triangles"];

  constructor(section, key) {
    this.section = section;
    this.key = key;
    this.prefix = key === "geometry" ? "g." : `${key}.`;
    this.found = (selector) => section.querySelector(selector);
    this.found("[data-layer]").addEventListener("change", (e) => { EQ.state.set(this.prefix + "layer", e.target.value); this.redraw(); });
    this.found("[data-step]").addEventListener("input", (e) => { EQ.state.set(this.prefix + "step", this.notes.steps[e.target.value]); this.redraw(); });
    this.which = this.found("[data-which]"); // of several runs
    this.which?.addEventListener("change", (e) => { EQ.state.set(this.prefix + "run", e.target.value === "0" ? "" : e.target.value); this.redraw(); });
    this.found("[data-play]").addEventListener("click", () => this.play());
    for (const name of ["notes", "triangles"]) EQ.whenChanged(this.source(name), () => setTimeout(() => this.redraw(), 0)); // both come at once
    addEventListener("resize", () => { clearTimeout(this.resized); this.resized = setTimeout(() => this.redraw(), 150); }); // to scale
    this.redraw();
  }
  source(name) { return EQ.model(`${this.key}-${name}${this.which && this.which.value !== "0" ? this.which.value : ""}`); }
  drawn() { this.redraw(); } // to scale, once there is a size
  reset() { this.redraw(); }

  play() {
    const slider = this.found("[data-step]"), button = this.found("[data-play]");
    const stop = () => { clearInterval(this.playing); this.playing = null; button.textContent = "Play"; };
    if (this.playing) return stop();
    if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
    button.textContent = "Stop";
    this.playing = setInterval(() => {
      if (Number(slider.value) >= Number(slider.max)) return stop();
      slider.value = Number(slider.value) + 1;
      slider.dispatchEvent(new Event("input"));
    }, 220);
  }

  redraw() {
    if (this.which) this.which.value = EQ.state.get(this.prefix + "run", "0");
    if (this.which?.value === "") this.which.value = "0";
    this.notes = JSON.parse(EQ.curves.column(this.source("notes"), "json")[0]);
    const names = Array.from(EQ.curves.column(this.source("triangles"), "name") ?? []), steps = this.notes.steps;
    const none = !names.length || !steps.length;
    const place = this.found("[data-none]");
    place.hidden = !none;
    place.textContent = this.notes.loading ?? "Nothing to draw: no step of a matrix has been measured.";
    this.found("[data-some]").hidden = none;
    if (none) return void (this.found("[data-sentence]").textContent = "");
    const select = this.found("[data-layer]"), slider = this.found("[data-step]");
    if ([...select.options].map((o) => o.value).join("\n") !== names.join("\n")) select.replaceChildren(...names.map((value, i) => EQ.el("option", { value, title: value }, EQ.curves.column(this.source("triangles"), "short")[i])));
    const wanted = EQ.state.get(this.prefix + "layer", this.notes.chosen);
    select.value = names.includes(wanted) ? wanted : names[0];
    slider.max = steps.length - 1;
    const asked = EQ.state.get(this.prefix + "step");
    let k = asked == null ? steps.length - 1 : steps.reduce((best, s, i) => (Math.abs(s - asked) < Math.abs(steps[best] - asked) ? i : best), 0);
    slider.value = k;
    this.found("[data-step-text]").textContent = `${steps[k].toLocaleString("en")}`;
    const i = names.indexOf(select.value);
    const values = Object.fromEntries(["before", "after", "along", "across", "update", "decay"].map((q) => [q, EQ.curves.line(this.source("triangles"), q, i)]));
    const at = Object.fromEntries(Object.entries(values).map(([q, v]) => [q, v[k]]));
    this.draw(at);
    this.say(at, select.value, steps[k]);
    this.budget(values, steps);
  }

  draw({ before, along, across, decay }) {
    const ink = EQ.css("--ink"), soft = EQ.css("--soft"), blue = EQ.color(0), red = EQ.color(1), green = EQ.color(2);
    const [x, y] = [before + along, across], bent = before - decay;
    const circle = (top) => Array.from({ length: 80 }, (_, i) => [Math.sqrt(Math.max(0, before ** 2 - (top * i / 79) ** 2)), top * i / 79]);
    const arrows = [
      { from: [0, 0], to: [before, 0], color: ink, text: "weights before", name: "w" },
      { from: [before, 0], to: [bent, 0], color: red, text: "decay" },
      { from: [bent, 0], to: [x, y], color: blue, text: "update" },
      { from: [0, 0], to: [x, y], color: green, text: "weights after" },
    ];
    const whole = EQ.model(`${this.key}-whole`);
    const view = Bokeh.index.get_by_id?.(whole.id);
    const width = view?.frame?.bbox?.width || 900, height = view?.frame?.bbox?.height || 180;
    const narrow = width < 450; // words have less room
    const span = Math.max(before * (narrow ? 1.4 : 1.12), (y * 1.5 * width) / height);
    whole.x_range.setv({ start: -0.03 * span, end: span * 0.97 });
    whole.y_range.setv({ start: -span * (height / width) * 0.3, end: span * (height / width) * 0.7 });
    const names = [
      [before * 0.5, 0, "weights before", ink, 0, 15, "center"],
      [x * 0.5, y * 0.5, "weights after", green, 0, -14, "center"],
      [before, y / 2, "update", blue, 12, 0, "left"],
    ];
    this.place("whole", [arrows[0], arrows[2], arrows[3]], names, circle(Math.min(before, span * (height / width) * 0.66)), "update");
    // At the tip both directions have their own scale, and x counts from the end of the weights.
    const gain = before - Math.sqrt(Math.max(0, before ** 2 - across ** 2));
    const most = Math.max(decay, gain, -along, before * 1e-9);
    const left = (narrow ? 2.2 : 1.5) * most, right = (narrow ? 1.4 : 0.9) * Math.max(along, 1.05 * most);
    const tip = EQ.model(`${this.key}-tip`);
    tip.x_range.setv({ start: -left, end: right });
    tip.y_range.setv({ start: -0.16 * across, end: 1.28 * across });
    const moved = arrows.map((a) => ({ ...a, from: [a.from[0] - before, a.from[1]], to: [a.to[0] - before, a.to[1]] }));
    const labels = [
      [0, 0, narrow ? "before" : "weights before", ink, 8, 14, "left"],
      [-decay / 2, 0, "decay", red, 0, 16, "center"],
      [(bent + x) / 2 - before, y / 2, "update", blue, -10, 0, "right"],
      [x - before, y, "weights after", green, 0, -16, "center"],
      [Math.sqrt(Math.max(0, before ** 2 - (0.3 * y) ** 2)) - before, 0.3 * y, narrow ? "same norm" : "same norm as before", soft, 10, 0, "left"],
    ];
    this.stretch = (across * 1.44) / (left + right);
    this.place("tip", moved, labels, circle(1.25 * across).map(([cx, cy]) => [cx - before, cy]), "weights after");
  }

  place(name, arrows, labels, circle, blunt) {
    const soft = EQ.css("--soft"), fig = EQ.model(`${this.key}-${name}`), put = (part, data) => { EQ.model(`${this.key}-${name}-${part}`).data = data; };
    put("circle", { xs: [circle.map((p) => p[0])], ys: [circle.map((p) => p[1])], color: [soft] });
    put("arrows", { xs: arrows.map((a) => [a.from[0], a.to[0]]), ys: arrows.map((a) => [a.from[1], a.to[1]]), color: arrows.map((a) => a.color), name: arrows.map((a) => a.text) });
    const view = Bokeh.index.get_by_id?.(fig.id), w = view?.frame?.bbox?.width || 1, h = view?.frame?.bbox?.height || 1;
    const sx = w / (fig.x_range.end - fig.x_range.start), sy = h / (fig.y_range.end - fig.y_range.start);
    const angle = (a) => Math.atan2((a.to[1] - a.from[1]) * sy, (a.to[0] - a.from[0]) * sx) - Math.PI / 2;
    const pointed = arrows.filter((a) => a.text !== blunt); // two heads on one point are a star
    put("heads", { x: pointed.map((a) => a.to[0]), y: pointed.map((a) => a.to[1]), angle: pointed.map(angle), color: pointed.map((a) => a.color) });
    const column = (k) => labels.map((l) => l[k]);
    put("labels", { x: column(0), y: column(1), text: column(2), color: column(3), dx: column(4), dy: column(5), align: column(6) });
  }

  say(at, layer, step) {
    const angle = Math.atan2(at.across, at.before + at.along), change = at.after / at.before - 1;
    const verb = Math.abs(change) < 0.02 * (at.across / at.before) ** 2 ? "keeps its norm" : change > 0 ? "gets longer" : "gets shorter";
    this.found("[data-sentence]").textContent = `Step ${step.toLocaleString("en")} of ${layer}${this.which ? `, ${this.which.selectedOptions[0].textContent},` : ""} rotates the weights by ${EQ.number(angle, 3)} rad (${EQ.number((angle * 180) / Math.PI, 2)}°); the weight vector ${verb}.`;
    this.found("[data-tip-words]").textContent = `The same step, magnified, about ${EQ.number(Math.max(1, this.stretch), 2)} times more along the weights than across. Inside the dashed circle the norm falls, outside it grows.`;
    const gained = at.after - (at.before - at.decay);
    const rows = [["‖w‖ before", at.before], ["‖update‖", at.update], ["decay, lr·wd·‖w‖", at.decay], ["growth by the update", gained], ["‖w‖ after", at.after], ["angle", angle]];
    this.found("[data-numbers]").replaceChildren(...rows.map(([k, v]) => EQ.el("div", {}, EQ.el("dt", {}, k), EQ.el("dd", {}, EQ.number(v, 5)))));
  }

  budget(v, steps) {
    // ‖w‖² before, after decay, and after the update: its differences are what each of them did.
    const per = (f) => steps.map((_, k) => f(k) / v.before[k] ** 2);
    const bent = (k) => (v.before[k] - v.decay[k]) ** 2;
    const curves = [
      { name: "update adds", color: EQ.color(0), xs: steps, ys: per((k) => v.after[k] ** 2 - bent(k)) },
      { name: "decay removes", color: EQ.color(1), xs: steps, ys: per((k) => v.before[k] ** 2 - bent(k)) },
    ];
    EQ.curves.fill(`${this.key}-budget`, curves, { logx: true });
    EQ.curves.extent(EQ.model(`${this.key}-budget`).x_range, steps[0], steps[steps.length - 1], false);
  }
};
