// Figures in their places. To build one takes Bokeh tens of milliseconds, so that a figure is a model until its place
// comes into sight, and those further down follow when there is nothing else to do.
"use strict";
EQ.places = (() => {
  const roots = []; // where Bokeh puts the figure that is the document's root of the same number
  const waiting = new Set();
  let page = null, fresh = [], said = null;

  async function load() {
    const known = new Set(Bokeh.documents);
    await Bokeh.embed.embed_items({ page: JSON.parse(document.getElementById("figures").textContent) }, []); // models, no views
    page = Bokeh.documents.find((d) => !known.has(d) && d.get_model_by_name("page") != null);
    await Bokeh.embed.add_document_standalone(page, document.body, roots);
  }
  function draw(place) {
    waiting.delete(place);
    sight.unobserve(place);
    const figure = page.get_model_by_name(place.dataset.figure);
    // A finger scrolls the page; the tools of a plot are there for who wants to zoom.
    if (matchMedia("(pointer: coarse)").matches) figure.toolbar.active_drag = null;
    fresh.push({ place, figure });
    if (fresh.length === 1) requestAnimationFrame(settled);
    roots[page.roots().length] = place;
    page.add_root(figure);
  }
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && waiting.has(entry.target)) draw(entry.target);
    if (!fresh.length) said?.(); // where nothing was measured there is no place to be seen
  }, { rootMargin: "120px" });

  // All that was begun is on the screen: tell who waits for it, then go on with one that cannot be seen yet.
  function settled() {
    if (!fresh.every(({ figure }) => Bokeh.index.get_by_id(figure.id)?.has_finished())) return void requestAnimationFrame(settled);
    const sections = new Set(fresh.map(({ place }) => place.closest("section.page").id));
    fresh = [];
    said?.();
    for (const key of sections) EQ.sections.get(key)?.drawn?.();
    idle(next);
  }
  const idle = (act) => (window.requestIdleCallback ? requestIdleCallback(act, { timeout: 500 }) : setTimeout(act, 50));
  function next() {
    if (fresh.length) return; // somebody scrolls
    delete document.body.dataset.whole;
    const place = [...waiting].find((p) => p.offsetParent != null);
    if (place) draw(place);
    else document.body.dataset.whole = "1";
  }
  function begin(done) {
    said = () => { said = null; done(); };
    for (const place of document.querySelectorAll("[data-figure]")) {
      waiting.add(place);
      sight.observe(place);
    }
    addEventListener("beforeprint", () => { for (const place of [...waiting]) if (place.offsetParent != null) draw(place); });
  }
  return { load, begin, get loaded() { return page != null; } };
})();
