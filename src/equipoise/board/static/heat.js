// Layers × time as a picture: columns at even distances of whatever x is, each showing the measured step nearest to it.
"use strict";

// What a heatmap's title says that layers are held against.
EQ.against = { forecast: "its forecast", layers: "the median layer" };

// Which layers are matrices; all where none is.
EQ.matrices = (layers) => {
  const roles = Array.from(EQ.curves.column(layers, "role") ?? []), all = roles.map((_, i) => i);
  const found = all.filter((i) => roles[i] !== "gain" && roles[i] !== "bias");
  return found.length ? found : all;
};

// Rotation of some layers over what it is held against: the forecast, or the median matrix of the step.
EQ.ratios = (layers, rows, against) => {
  const line = (i) => (i < 0 ? null : EQ.curves.line(layers, "rotation", i)), lines = rows.map(line);
  const median = (values) => {
    const sorted = Array.from(values).filter((v) => v > 0 && Number.isFinite(v)).sort((a, b) => a - b), n = sorted.length;
    return n ? (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2 : NaN;
  };
  if (against === "layers") {
    const among = EQ.matrices(layers).map(line).filter((l) => l != null);
    const middle = Float32Array.from({ length: among[0]?.length ?? 0 }, (_, k) => median(among.map((l) => l[k])));
    return lines.map((l) => l?.map((v, k) => v / middle[k]) ?? null);
  }
  return lines.map((l, r) => {
    if (l == null) return null;
    const forecast = EQ.curves.line(layers, "rotation_forecast", rows[r]);
    return forecast ? l.map((v, k) => v / forecast[k]) : null;
  });
};

EQ.heat = (() => {
  const shown = new Map(); // what a figure's labels and height were made for
  let NDArray = null; // Bokeh's class of shaped arrays, which it does not export

  return (key, layers, { xs, low, high, logx, rows, names, marks, against }) => {
    const figure = EQ.model(key), source = EQ.model(`${key}-image`);
    const columns = Math.min(500, Math.max(1, xs.length * 2));
    const [a, b] = logx ? [Math.log(low), Math.log(high)] : [low, high];
    const picks = [];
    for (let j = 0, k = 0; j < columns; j++) {
      const x = a + ((b - a) * (j + 0.5)) / columns, at = logx ? Math.exp(x) : x;
      while (k + 1 < xs.length && Math.abs(xs[k + 1] - at) <= Math.abs(xs[k] - at)) k++;
      picks.push(at > xs[xs.length - 1] + (b - a) / columns ? -1 : k); // a shorter run than the axis
    }
    const image = new Float32Array(rows.length * columns);
    const ratios = EQ.ratios(layers, rows, against);
    ratios.forEach((ratio, r) => {
      for (let j = 0; j < columns; j++) image[r * columns + j] = ratio && picks[j] >= 0 ? Math.log2(ratio[picks[j]]) : NaN;
    });
    NDArray ??= source.data.image[0].constructor;
    const shaped = new NDArray(image, [rows.length, columns]);
    const some = xs.length > 0 && rows.length > 0;
    source.data = some ? { image: [shaped], x: [low], y: [-0.5], dw: [high - low], dh: [rows.length] } : { image: [], x: [], y: [], dw: [], dh: [] };
    const ticker = figure.below[0].ticker, few = innerWidth < 600 ? 3 : 6; // names of layers leave little room for steps
    if (ticker.desired_num_ticks !== undefined && ticker.desired_num_ticks !== few) ticker.desired_num_ticks = few;
    EQ.model(`${key}-colors`).palette = EQ.diverging();
    const middle = { forecast: "as forecast", layers: "the median" }[against];
    const bar = figure.right[0];
    bar.major_label_text_color = EQ.css("--soft");
    if (shown.get(bar) !== middle) {
      shown.set(bar, middle);
      bar.major_label_overrides = new Map([[-2, "¼ ×"], [-1, "½ ×"], [0, middle], [1, "2 ×"], [2, "4 ×"]]);
    }
    const labels = rows.map((_, r) => EQ.plain(names[r]));
    if (shown.get(key) !== labels.join("\n")) {
      shown.set(key, labels.join("\n"));
      figure.y_range.setv({ start: rows.length - 0.5, end: -0.5 });
      figure.height = Math.min(620, Math.max(150, 60 + (rows.length <= 12 ? 26 : 16) * rows.length));
      const all = rows.length <= 45;
      figure.left[0].setv({
        ticker: all ? EQ.make("FixedTicker", { ticks: rows.map((_, r) => r) }) : EQ.make("BasicTicker", { min_interval: 1, desired_num_ticks: 20 }),
        major_label_overrides: new Map(labels.map((label, r) => [r, label])),
      });
    }
    EQ.model(`${key}-marks`).data = { y: marks.map(([r]) => r), left: marks.map(() => low), right: marks.map(() => high), color: marks.map(([, color]) => color) };
    return { picks, low, high, a, b, ratios };
  };
})();
