// What all pages share: the state in the URL, light and dark, tabs, small helpers. Names from runs only ever go through
// textContent, never into HTML.
"use strict";
const EQ = (() => {
  const sections = new Map(); // key → view, as {redraw, reset}
  const PATIENCE = 10_000; // milliseconds of loading without another word
  const kinds = {}; // kind → class, filled by the other scripts

  const model = (name) => {
    for (const doc of Bokeh.documents) {
      const found = doc.get_model_by_name(name);
      if (found != null) return found;
    }
    return null;
  };
  const make = (type, options = {}) => new (Bokeh.Models.get(type))(options);

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value != null) made.setAttribute(key, value);
    }
    made.append(...children.filter((c) => c != null));
    return made;
  }

  // The state of the page is kept in the URL's hash, so that a link shows what its sender saw.
  let params = new URLSearchParams(location.hash.slice(1));
  const state = {
    get: (key, otherwise) => params.get(key) ?? otherwise,
    set(key, value) {
      if (value == null || value === "" || value === false) params.delete(key);
      else params.set(key, value === true ? "1" : String(value));
      const text = params.toString();
      try {
        history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
      } catch { /* a page inside a notebook's frame has no address: what is chosen lasts as long as it is open */ }
    },
  };

  function number(x, digits = 4) {
    if (x == null || Number.isNaN(x)) return "–";
    if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e6 || size < 1e-3) return x.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
    if (size >= 1000) return Math.round(x).toLocaleString("en");
    return String(Number(x.toPrecision(digits)));
  }

  // No $$, which Bokeh would take for mathematics and ask the network for.
  const plain = (name) => name.replaceAll("$$", "$\u200b$");

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (i) => css(`--s${((i % 8) + 8) % 8}`);
  function mixed(a, b, t) {
    const part = (c, k) => parseInt(c.slice(1 + 2 * k, 3 + 2 * k), 16);
    return "#" + [0, 1, 2].map((k) => Math.round(part(a, k) * (1 - t) + part(b, k) * t).toString(16).padStart(2, "0")).join("");
  }
  function diverging(count = 129) {
    const [low, mid, high] = ["--low", "--mid", "--high"].map(css);
    return Array.from({ length: count }, (_, i) => {
      const t = (2 * i) / (count - 1);
      return t <= 1 ? mixed(low, mid, t) : mixed(mid, high, t - 1);
    });
  }

  function theme(to) {
    const root = document.documentElement;
    root.dataset.theme = to;
    root.style.colorScheme = to;
    document.getElementById("theme").textContent = to === "dark" ? "☀ light" : "☾ dark";
    try { localStorage.setItem("equipoise-theme", to); } catch { /* storage may be off */ }
  }
  function firstTheme() {
    let kept = null;
    try { kept = localStorage.getItem("equipoise-theme"); } catch { /* storage may be off */ }
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    return state.get("theme", kept ?? system);
  }
  function switchTheme() {
    const to = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    theme(to);
    state.set("theme", to);
    repaint();
  }
  function repaint() {
    for (const view of sections.values()) view.redraw();
    for (const view of window.Bokeh?.index ?? []) view.request_repaint?.(); // axes take their colours from CSS
  }

  function tab(key, remember = true) {
    const all = [...document.querySelectorAll("section.page")];
    const chosen = all.some((s) => s.id === key) ? key : all[0]?.id;
    for (const page of all) page.hidden = page.id !== chosen;
    for (const button of document.querySelectorAll("[data-tab]")) {
      const mine = button.dataset.tab === chosen;
      button.setAttribute("aria-selected", mine);
      button.tabIndex = mine ? 0 : -1;
    }
    document.getElementById(`tab-${chosen}`)?.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone
    if (remember) state.set("page", chosen === all[0]?.id ? "" : chosen);
    const page = all.find((s) => s.id === chosen);
    const kind = kinds[page?.dataset.kind];
    if (kind && !sections.has(chosen)) sections.set(chosen, new kind(page, chosen)); // drawn when first looked at
  }
  function tabKeys(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...document.querySelectorAll("[data-tab]")];
    const next = all[(all.indexOf(event.target) + step + all.length) % all.length];
    next.focus();
    tab(next.dataset.tab);
  }

  function download(name, text, type = "text/csv") {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const quoted = (x) => {
    let text = String(x);
    if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = "'" + text; // a spreadsheet would run it
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (rows) => rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no clipboard outside https and localhost
      const area = el("textarea", { class: "offscreen" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  }

  const whenChanged = (source, act) => source?.connect(source.properties.data.change, act);

  function begin() {
    theme(firstTheme());
    document.getElementById("theme").addEventListener("click", switchTheme);
    for (const button of document.querySelectorAll("[data-tab]")) {
      button.addEventListener("click", () => tab(button.dataset.tab));
      button.addEventListener("keydown", tabKeys);
    }
    document.addEventListener("keydown", (event) => {
      const path = event.composedPath();
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(path[0]?.tagName ?? "")) return;
      if (event.key === "t") switchTheme();
      if (event.key === "r") for (const view of sections.values()) view.reset?.();
    });
    addEventListener("hashchange", () => {
      params = new URLSearchParams(location.hash.slice(1));
      tab(state.get("page", ""), false);
      for (const view of sections.values()) view.redraw();
    });
    const wanted = [...document.querySelectorAll("section.page")].filter((s) => s.dataset.kind in kinds);
    if (!wanted.length) return void (document.body.dataset.ready = "1");
    EQ.places.load();
    wait(wanted);
  }
  // Figures come with the page, numbers of a live one through its socket.
  function wait(wanted, since = performance.now()) {
    if (performance.now() - since > PATIENCE) for (const place of document.querySelectorAll("[data-loading]")) place.textContent = "Still loading. If this goes on, the board may be busy or stopped.";
    if (!EQ.places.loaded || !wanted.every((s) => kinds[s.dataset.kind].needs.every((name) => model(`${s.id}-${name}`)))) return void setTimeout(wait, 15, wanted, since);
    document.body.dataset.loaded = "1";
    tab(state.get("page", ""), false);
    EQ.places.begin(() => { document.body.dataset.ready = "1"; });
  }

  return { kinds, model, make, el, state, number, plain, css, color, diverging, download, csv, copy, whenChanged, begin, tab, repaint, sections };
})();
