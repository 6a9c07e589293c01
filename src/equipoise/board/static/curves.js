// Curves out of the numbers that a page carries: columns, x axes, smoothing, scales.
"use strict";
EQ.curves = (() => {
  const column = (source, name) => source?.data?.[name] ?? null;
  const rows = (source) => column(source, "name")?.length ?? 0;

  // Line i of a matrix; a view, not a copy. NDArray's own subarray does not know what to do with a shape.
  function line(source, name, i) {
    const matrix = column(source, name);
    if (matrix == null || matrix.shape == null || matrix.shape.length < 2) return null;
    const width = matrix.shape[1];
    return new Float32Array(matrix.buffer, matrix.byteOffset + 4 * i * width, width);
  }

  const UNITS = [[3600 * 3, 3600, "time (hours)"], [180, 60, "time (minutes)"], [0, 1, "time (seconds)"]];
  const unit = (longest) => UNITS.find(([from]) => longest >= from) ?? UNITS[2];

  // The x of a source as chosen, and what to call it.
  function xOf(source, kind, longest) {
    const values = column(source, kind) ?? column(source, "step") ?? [];
    if (kind !== "time") return Array.from(values);
    const [, per] = unit(longest);
    return Array.from(values, (t) => t / per);
  }
  const xLabel = (kind, longest) => (kind === "time" ? unit(longest)[2] : kind);

  // Exponential moving average, corrected for its start, so that it begins at the data.
  function smooth(values, amount) {
    if (!amount) return Array.from(values);
    let sum = 0, weight = 0;
    return Array.from(values, (v) => {
      if (!Number.isFinite(v)) return NaN;
      sum = amount * sum + (1 - amount) * v;
      weight = amount * weight + (1 - amount);
      return sum / weight;
    });
  }

  // Pairs that can be drawn.
  function finite(xs, ys, logx, logy) {
    const x = [], y = [];
    for (let i = 0; i < xs.length; i++) {
      if (Number.isFinite(ys[i]) && Number.isFinite(xs[i]) && !(logy && ys[i] <= 0) && !(logx && xs[i] <= 0)) {
        x.push(xs[i]);
        y.push(ys[i]);
      }
    }
    return [x, y];
  }

  // Fill a figure's sources. curves: [{name, color, xs, ys, dashed, low, high, raw}]
  function fill(key, curves, { logx = false, logy = false, amount = 0, fixed = false } = {}) {
    const out = {};
    const put = (part, name, color, xs, ys) => {
      const o = (out[part] ??= { xs: [], ys: [], name: [], color: [] });
      o.xs.push(xs); o.ys.push(ys); o.name.push(name); o.color.push(color);
    };
    for (const c of curves) {
      const [xs, ys] = finite(c.xs, smooth(c.ys, amount), logx, logy);
      if (!xs.length) continue;
      put("lines", c.name, c.color, xs, ys);
      if (c.dashed != null) put("dashed", c.name, c.color, ...finite(c.xs, c.dashed, logx, logy));
      if (amount) put("raw", c.name, c.color, ...finite(c.xs, c.ys, logx, logy));
      if (c.low != null && c.high != null) {
        const [xl, low] = finite(c.xs, smooth(c.low, amount), logx, logy);
        const [xh, high] = finite(c.xs, smooth(c.high, amount), logx, logy);
        if (xl.length && xh.length) put("band", c.name, c.color, [...xl, ...xh.reverse()], [...low, ...high.reverse()]);
      }
    }
    for (const part of ["lines", "dashed", "band", "raw"]) {
      const source = EQ.model(`${key}-${part}`);
      if (source != null) source.data = out[part] ?? { xs: [], ys: [], name: [], color: [] };
    }
    const figure = EQ.model(key);
    for (const m of figure?.center ?? []) if (m.type === "Legend") m.label_text_color = EQ.css("--ink");
    if (figure != null && !fixed) level(figure.y_range, Object.values(out).flatMap((o) => o.ys), logy);
    const none = !(out.lines?.xs.length > 0);
    if (figure != null) empty(figure, none);
  }

  // As high as the curves need, with a little room.
  function level(range, curves, log) {
    let low = Infinity, high = -Infinity;
    for (const ys of curves) for (const v of ys) { if (v < low) low = v; if (v > high) high = v; }
    if (!(high >= low)) [low, high] = [log ? 1 : 0, log ? 10 : 1];
    if (high === low) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)];
    const room = log ? (high / low) ** 0.06 : (high - low) * 0.06;
    const [start, end] = log ? [low / room, high * room] : [low === 0 ? 0 : low - room, high + room];
    range.setv({ start, end, reset_start: start, reset_end: end });
  }

  // Where there is nothing to draw, say so instead of an empty frame.
  function empty(figure, none) {
    document.querySelector(`[data-figure="${figure.name}"]`)?.classList.toggle("nothing", none);
  }

  const formatter = (dimension, log) =>
    log ? EQ.make("LogTickFormatter") : dimension === "x" ? EQ.make("NumeralTickFormatter", { format: "0,0.[00]" }) : EQ.make("BasicTickFormatter", { power_limit_low: -5 });

  function scale(figure, dimension, log) {
    const kind = log ? "LogScale" : "LinearScale";
    const key = `${dimension}_scale`;
    if (figure == null || figure[key].type === kind) return;
    const axis = dimension === "x" ? figure.below[0] : figure.left[0];
    axis.setv({ ticker: EQ.make(log ? "LogTicker" : "BasicTicker"), formatter: formatter(dimension, log) });
    figure[key] = EQ.make(kind);
  }

  // The shared x range: the whole extent, unless somebody has zoomed.
  function extent(range, low, high, zoomed) {
    if (!(high > low)) high = low + 1;
    range.setv({ reset_start: low, reset_end: high });
    if (!zoomed) range.setv({ start: low, end: high });
  }

  return { column, rows, line, xOf, xLabel, smooth, finite, fill, scale, extent };
})();
