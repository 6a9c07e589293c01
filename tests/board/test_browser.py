"""Pages in a browser: what people do with them, by mouse and keyboard, light and dark, and nothing in the console."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest
from tests.board import example_runs, known_run
from tests.board.board_process import board
from tests.board.pages import test_forward_view

import equipoise as eq
from equipoise.board import report, write_plan

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser tests")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium here: no browser tests")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


class Seen:
    """A page, and all that went wrong on it."""

    def __init__(self, browser: Any, width: int = 1280, scheme: str = "light", **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True, **options
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(300_000)
        self.wrong: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.asked: list[str] = []

    def open(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]", state="attached")
        return self.page

    def data(self, source: str) -> Any:
        """The columns of a source, as plain lists."""
        return self.page.evaluate(
            "name => Object.fromEntries(Object.entries(EQ.model(name).data).map(([k, v]) =>"
            " [k, Array.from(v, x => x && x.length !== undefined && typeof x !== 'string' ? Array.from(x) : x)]))",
            source,
        )


@pytest.fixture
def seen(chromium: Any) -> Iterator[Any]:
    """Makes pages; at the end none of them may have complained."""
    made_here: list[Seen] = []

    def make(**options: Any) -> Seen:
        made_here.append(Seen(chromium, **options))
        return made_here[-1]

    yield make
    for one in made_here:
        one.context.close()
        assert not one.wrong


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    example_runs.trained(root / "good", steps=60)
    example_runs.trained(root / "fault", steps=60, fault=100.0)
    example_runs.crashed(root / "crashed")
    example_runs.empty(root / "empty")
    example_runs.made(root / "evil", [example_runs.EVIL, example_runs.EVIL_TOO, "plain.weight"], rows=40)
    return root


@pytest.fixture(scope="module")
def file(runs: Path) -> str:
    return report([runs / "good"], runs / "good.html").as_uri()


@pytest.fixture(scope="module")
def live(runs: Path) -> Iterator[str]:
    with board(runs) as address:
        yield address


def until(page: Any, condition: str, seconds: float = 300.0) -> None:
    """Wait for a condition; by asking again, as the page's policy lets nobody evaluate text inside of it."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def chips(page: Any) -> list[str]:
    return page.locator("[data-chips] .chip").evaluate_all("all => all.map(chip => chip.dataset.name)")


def click_row(page: Any, row: int, rows: int = 6) -> None:
    """Click a row of the heatmap, where Bokeh has its frame."""
    box = page.evaluate(
        "() => { const v = [...Bokeh.index].find(v => v.model.name === 'run-heat');"
        " const at = v.el.getBoundingClientRect(), f = v.frame.bbox;"
        " v.el.scrollIntoView({block: 'center'}); const b = v.el.getBoundingClientRect();"
        " return [b.left + f.left, b.top + f.top, f.width, f.height]; }"
    )
    page.mouse.click(box[0] + box[2] / 2, box[1] + box[3] * (row + 0.5) / rows)


def test_a_file_opens_without_the_network(seen: Any, file: str) -> None:
    s = seen(offline=True)
    page = s.open(file)
    assert page.locator(".sentence").first.inner_text().startswith("Finished after 60 steps")
    assert len(s.data("run-loss-lines")["xs"]) == 1
    assert s.asked == [file]


KNOWN_EVERY = 7


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("known")
    return report([known_run.train(folder / "a", every=KNOWN_EVERY)], folder / "a.html").as_uri()


def drawn(page: Any, source: str) -> Any:
    """What a figure's glyphs are drawn from: the columns of a source of the Bokeh document, images with their shape."""
    return page.evaluate(
        "name => { const list = v => v != null && typeof v === 'object' && v.length !== undefined;"
        " const plain = v => !list(v) ? v : v.shape?.length === 2"
        "   ? {shape: v.shape, values: Array.from(v)} : Array.from(v, plain);"
        " const data = Bokeh.documents[0].get_model_by_name(name).data;"
        " return Object.fromEntries(Object.entries(data).map(([k, v]) => [k, plain(v)])); }",
        source,
    )


def test_the_lines_that_are_drawn_are_the_known_numbers(seen: Any, known: str) -> None:
    page = seen().open(known)
    steps = np.arange(1, known_run.STEPS + 1)
    loss = drawn(page, "run-loss-lines")
    assert loss["xs"] == [steps.tolist()]
    np.testing.assert_allclose(loss["ys"][0], known_run.LOSS, rtol=1e-12)
    schedule = drawn(page, "run-schedule-lines")
    assert schedule["name"] == ["group 0", "group 1"]
    for xs, ys in zip(schedule["xs"], schedule["ys"], strict=True):
        np.testing.assert_allclose(np.interp(steps, xs, ys), known_run.LR, rtol=2e-3)
        assert (xs[int(np.argmax(ys))], max(ys)) == (known_run.WARMUP, pytest.approx(known_run.PEAK, rel=1e-12))
    measured, name = known_run.measured_steps(KNOWN_EVERY), "1.weight"
    truth, forecast = known_run.truth(name), known_run.forecast(name)
    page.locator("[data-pattern]").fill(name)
    page.get_by_role("button", name="Only these").click()
    for quantity in ("norm", "rotation"):
        lines, dashed, band = (drawn(page, f"run-{quantity}-{part}") for part in ("lines", "dashed", "band"))
        assert lines["name"] == dashed["name"] == band["name"] == [name]
        assert lines["xs"] == dashed["xs"] == [measured]
        assert band["xs"] == [measured + measured[::-1]], "there along the low end, and back along the high one"
        np.testing.assert_allclose(lines["ys"][0], truth.at(quantity, measured), rtol=2e-5)
        expected = getattr(forecast, quantity)[np.array(measured) - 1]
        np.testing.assert_allclose(dashed["ys"][0], expected, rtol=2e-3)
        low, high = (truth.at(f"{quantity}_{side}", measured) for side in ("low", "high"))
        np.testing.assert_allclose(band["ys"][0], np.r_[low, high[::-1]], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("against", ["forecast", "layers"])
def test_the_colours_of_the_heatmap_are_the_known_ratios(seen: Any, known: str, against: str) -> None:
    page = seen().open(f"{known}#against={against}")
    image = drawn(page, "run-heat-image")
    (picture,), (left,), (width,) = image["image"], image["x"], image["dw"]
    (rows, columns), measured = picture["shape"], np.array(known_run.measured_steps(KNOWN_EVERY))
    values = np.array(picture["values"]).reshape(rows, columns)
    assert (left, left + width, rows, image["y"], image["dh"]) == (1, known_run.STEPS, 2, [-0.5], [2])
    # Each column has the middle of its stretch of the axis, and shows the measured step that is nearest.
    middles = left + width * (np.arange(columns) + 0.5) / columns
    steps = measured[np.abs(middles[:, None] - measured).argmin(1)]
    rotation = np.array([known_run.truth(name).at("rotation", steps.tolist()) for name in known_run.MATRICES])
    if against == "forecast":
        held = np.array([known_run.forecast(name).rotation[steps - 1] for name in known_run.MATRICES])
    else:
        held = np.median(rotation, axis=0)
    np.testing.assert_allclose(values, np.log2(rotation / held), atol=3e-3)
    assert np.ptp(values) > 0.1, "it has something to show"


def test_clicking_the_heatmap_chooses_layers(seen: Any, file: str) -> None:
    s = seen()
    page = s.open(file)
    page.get_by_role("button", name="Clear").click()
    assert chips(page) == []
    click_row(page, 2)
    page.wait_for_selector("[data-chips] .chip")
    assert chips(page) == ["2.0.weight"]
    page.wait_for_timeout(400)  # not a double click
    click_row(page, 5)
    until(page, "document.querySelectorAll('[data-chips] .chip').length === 2")
    assert s.data("run-rotation-lines")["name"] == ["2.0.weight", "5.weight"]
    assert "2.0.weight" in page.evaluate("decodeURIComponent(location.hash)")
    page.wait_for_timeout(400)
    click_row(page, 2)
    until(page, "document.querySelectorAll('[data-chips] .chip').length === 1")
    assert chips(page) == ["5.weight"]


def test_layers_are_chosen_by_pattern_from_the_keyboard(seen: Any, file: str) -> None:
    s = seen()
    page = s.open(file)
    page.get_by_role("button", name="Clear").click()
    page.locator("[data-pattern]").focus()
    page.keyboard.type("^[01].*weight$")
    page.keyboard.press("Enter")
    assert chips(page) == ["0.0.weight", "1.0.weight", "0.1.weight", "1.1.weight"]
    page.locator("[data-pattern]").fill("no such")
    page.keyboard.press("Enter")
    assert page.locator("[data-said]").inner_text() == "No name matches."
    page.locator(".chip").first.focus()
    page.keyboard.press("Enter")
    assert len(chips(page)) == 3


def labels(page: Any, figure: str) -> list[str]:
    """What a heatmap writes beside its rows."""
    return page.evaluate(f"[...EQ.model('{figure}').left[0].major_label_overrides.values()]")


def test_names_are_short_where_layers_share_them_and_whole_in_titles(seen: Any, file: str, runs: Path) -> None:
    page = seen().open(file)
    assert labels(page, "run-heat") == ["0.0", "1.0", "2.0", "3.0", "4.0", "5"]
    page.get_by_label("gains and biases too").check()
    shown = labels(page, "run-heat")
    assert len(shown) == len(set(shown)) == len(page.evaluate("EQ.model('run-layers').data.name"))
    chip = page.locator("[data-chips] .chip").first
    assert chip.get_attribute("title").startswith(f"{chips(page)[0]}, ")
    assert chip.inner_text().removesuffix("×").strip() == chips(page)[0].removesuffix(".weight")
    page = seen().open(report([runs / "good", runs / "fault"], runs / "names.html").as_uri())
    option = page.locator("[data-state=layer] option").first
    assert (option.inner_text(), option.get_attribute("title")) == ("0.0", "0.0.weight")
    page.locator("[data-state=layout]").select_option("side")
    assert labels(page, "compare-heat1") == ["0.0", "1.0", "2.0", "3.0", "4.0", "5"]


def test_a_heatmap_says_what_layers_are_held_against(seen: Any, file: str, runs: Path, tmp_path: Path) -> None:
    s = seen()
    page = s.open(file)
    title = page.locator("[data-heat-title]").first
    assert title.inner_text() == "Which layer is off: rotation relative to its forecast"
    page.locator("[data-state=against]").select_option("layers")
    assert title.inner_text() == "Which layer is off: rotation relative to the median layer"
    one = example_runs.made(tmp_path / "unknown", ["a.weight", "b.weight", "c.weight"], rows=40)
    page = s.open(report([one], tmp_path / "unknown.html").as_uri())
    assert title.inner_text() == "Which layer is off: rotation relative to the median layer"
    assert not page.locator("[data-state=against]").is_visible()
    image = page.evaluate("Array.from(EQ.model('run-heat-image').data.image[0])")
    rows = [np.array(image).reshape(3, -1)[i] for i in range(3)]
    with eq.Run.open(one) as run:
        rotation = np.array([run.series("rotation", name).values for name in run.tensors])
    wanted = np.log2(rotation / np.median(rotation, axis=0))
    for got, line in zip(rows, wanted, strict=True):
        assert got[0] == pytest.approx(line[0], abs=1e-4)
        assert got[-1] == pytest.approx(line[-1], abs=1e-4)
    page = s.open(report([runs / "good", one], tmp_path / "mixed.html").as_uri())
    page.locator("[data-state=layout]").select_option("side")
    said = page.locator("#compare [data-heat-title]").all_inner_texts()
    assert said == ["Rotation of each layer relative to the median layer"] * 2, "one of them has no forecast"
    assert not page.locator("#compare [data-state=against]").is_visible()


def test_axes_smoothing_and_zoom(seen: Any, file: str) -> None:
    s = seen()
    page = s.open(file)
    plain = s.data("run-loss-lines")
    page.locator("[data-state=smooth]").fill("0.9")
    smooth = s.data("run-loss-lines")
    assert smooth["ys"] != plain["ys"]
    assert s.data("run-loss-raw")["ys"] == plain["ys"], "what was measured stays, faint"
    # The average by hand, corrected for its start.
    total = weight = 0.0
    for got, value in zip(smooth["ys"][0], plain["ys"][0], strict=True):
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
        assert got == pytest.approx(total / weight)
    page.locator("[data-state=x]").select_option("tokens")
    assert s.data("run-loss-lines")["xs"][0][:2] == [128, 256]
    page.get_by_label("log y").check()
    page.get_by_label("log x").check()
    scales = page.evaluate("['x_scale', 'y_scale'].map(k => EQ.model('run-norm')[k].type)")
    assert scales == ["LogScale", "LogScale"]
    page.evaluate("EQ.model('run-x').setv({start: 1000, end: 2000})")
    both = page.evaluate("['run-loss', 'run-heat', 'run-norm'].map(n => EQ.model(n).x_range.start)")
    assert both == [1000, 1000, 1000], "plots zoom together"
    page.get_by_role("button", name="Reset zoom").click()
    assert page.evaluate("EQ.model('run-x').end") == 128 * 60
    address = page.url
    again = seen()
    page = again.open(address)
    assert again.data("run-loss-lines")["xs"] == s.data("run-loss-lines")["xs"], "a link shows what its sender saw"
    assert page.evaluate("EQ.model('run-norm').y_scale.type") == "LogScale"


def test_light_and_dark(seen: Any, file: str) -> None:
    s = seen(scheme="dark")
    page = s.open(file)

    def look() -> list[str]:
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, EQ.model('run-heat-colors').palette[64]]"
        )

    dark, shot = look(), page.screenshot()
    page.get_by_role("button", name="Switch between light and dark").click()
    light = look()
    assert dark[0] != light[0]
    assert dark[1] != light[1], "the middle of the heatmap is that of the page"
    page.wait_for_timeout(300)
    assert page.screenshot() != shot
    page.keyboard.press("t")
    assert look() == dark


def test_tabs_work_from_the_keyboard_and_show_the_triangle(seen: Any, file: str) -> None:
    s = seen()
    page = s.open(file)
    page.get_by_role("tab", name="Run").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#geometry").is_visible()
    assert not page.locator("#run").is_visible()
    words = page.locator("#geometry .sentence").inner_text()
    assert words.startswith("Step 60 of ")
    arrows = s.data("geometry-whole-arrows")
    before, update, after = (list(zip(x, y, strict=True)) for x, y in zip(arrows["xs"], arrows["ys"], strict=True))
    assert update[1] == after[1], "the update ends where the weights after the step do"
    assert 0 < update[0][0] < before[1][0], "it begins where decay has left the weights"
    page.locator("[data-step]").fill("0")
    assert page.locator("#geometry .sentence").inner_text().startswith("Step 1 of ")
    assert s.data("geometry-whole-arrows") != arrows


def test_data_and_pictures_can_be_taken_along(seen: Any, file: str) -> None:
    s = seen()
    page = s.open(file)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download data").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "layer,quantity,step,value"
    assert any(line.startswith(",loss,60,") for line in lines)
    tools = page.evaluate("EQ.model('run-norm').toolbar.tools.map(t => t.type)")
    assert {"SaveTool", "ResetTool", "HoverTool"} <= set(tools)


def test_names_do_nothing(seen: Any, runs: Path, live: str) -> None:
    for address in (report([runs / "evil"], runs / "evil.html").as_uri(), f"{live}/run?run=evil"):
        page = seen().open(address)
        page.locator("[data-pattern]").fill("s")
        page.keyboard.press("Enter")
        assert example_runs.EVIL in chips(page)
        assert example_runs.EVIL_TOO in chips(page)
        plot = page.locator("figure", has=page.locator("[data-norm-words]")).locator(".plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        for share in (0.3, 0.5, 0.7):  # the tooltips of lines
            page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * share)
            page.wait_for_timeout(60)
        click_row(page, 0, rows=3)
        page.get_by_role("tab", name="Geometry").click()
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked === undefined")
        assert page.locator("img").count() == 0
    page = seen().open(f"{live}/compare?run=evil&run=good")
    assert page.evaluate("window.hacked === undefined")


@pytest.mark.parametrize(("name", "says"), [("empty", "Finished without"), ("crashed", "Crashed at step 30")])
def test_runs_that_did_not_go_well_look_right(seen: Any, live: str, name: str, says: str) -> None:
    page = seen().open(f"{live}/run?run={name}")
    assert page.locator(".sentence").first.inner_text().startswith(says)
    assert page.locator("#run .pill").first.inner_text() == name
    assert page.locator("#run .grid").first.is_visible() == (name == "crashed")


def test_a_live_page_follows_training(seen: Any, tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path / "now", ["a.weight", "b.weight"])
    growing.grow(10)
    with board(tmp_path) as address:
        s = seen()
        page = s.open(f"{address}/run?run=now")
        assert page.locator(".sentence").first.inner_text().startswith("Running: step 10")
        assert s.data("run-rotation-lines")["xs"][0][-1] == 10
        growing.grow(15)
        until(page, "document.querySelector('.sentence').textContent.startsWith('Running: step 25')")
        until(page, "EQ.model('run-rotation-lines').data.xs[0].at(-1) === 25")
        assert page.evaluate("EQ.model('run-x').end") == 25
        growing.close("crashed")
        until(page, "document.querySelector('.pill').textContent === 'crashed'")
        s.page.close()  # before the board ends


def test_the_list_is_filtered_and_leads_to_runs(seen: Any, live: str) -> None:
    s = seen()
    page = s.open(f"{live}/")
    until(page, "document.querySelectorAll('[data-rows] .pill').length === 5")
    page.locator("[data-filter]").fill("crash")
    until(page, "document.querySelectorAll('[data-rows] tr').length === 1")
    page.locator("[data-filter]").fill("")
    until(page, "document.querySelectorAll('[data-rows] tr').length === 5")
    for name in ("good", "fault"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("button", name="Compare 2").click()
    page.wait_for_selector("body[data-ready]", state="attached")
    assert s.data("compare-rotation-lines")["name"] == ["good", "fault"]


def listed(page: Any) -> list[str]:
    return page.locator("[data-rows] .name a").all_inner_texts()


def test_columns_order_and_filter_of_the_list_are_kept_in_the_address(seen: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.hacked=1'>"
    for i, lr in enumerate((0.01, 0.02, 0.04)):
        example_runs.logged(
            tmp_path / f"run{i}", lr=lr, meta={"seed": 9 - i, evil: evil, "tags": ["good", evil][: i + 1]}
        )
    with board(tmp_path) as address:
        page = seen().open(f"{address}/")
        until(page, "document.querySelectorAll('[data-rows] .pill').length === 3")
        page.locator(".picker summary").click()
        for name in ("accuracy", "seed", evil):  # found and clicked at once: the list may be drawn anew at any time
            page.evaluate(
                "name => [...document.querySelectorAll('[data-column]')].find(b => b.dataset.column === name).click()",
                name,
            )
            shown = (
                f"[...document.querySelectorAll('[data-heads] .sort')].some(b => b.dataset.sort === {json.dumps(name)})"
            )
            until(page, shown)
        page.keyboard.press("Escape")
        page.locator("[data-sort=seed]").click()
        until(page, "document.querySelector('[aria-sort=ascending] [data-sort=seed]') !== null")
        assert listed(page) == ["run2", "run1", "run0"]
        page.locator("[data-sort=seed]").click()
        until(page, "document.querySelector('[aria-sort=descending] [data-sort=seed]') !== null")
        assert listed(page) == ["run0", "run1", "run2"]
        page.locator("[data-filter]").fill("lr>=0.02 accuracy>0.5")
        until(page, "document.querySelectorAll('[data-rows] tr').length === 2")
        page.locator(".tag", has_text=evil).first.click()
        page.locator("[data-filter]").fill("lr>=0.02")
        until(page, "document.querySelectorAll('[data-rows] tr').length === 2")
        first = "document.querySelector('[data-rows] tr')"
        until(page, f"{first}.innerText.split('\\t').includes('0.75')")
        page.reload()
        until(page, "document.querySelectorAll('[data-rows] tr').length === 2")
        assert listed(page) == ["run1", "run2"]
        assert page.locator("[data-filter]").input_value() == "lr>=0.02"
        heads = page.locator("[data-heads] .sort").evaluate_all("all => all.map(b => b.dataset.sort)")
        assert heads[-3:] == ["accuracy", "seed", evil]
        page.locator("[data-filter]").fill("lr>fast")
        page.wait_for_selector("[data-wrong]:not([hidden])")
        assert "must compare with a number" in page.locator("[data-wrong]").inner_text()
        assert page.evaluate("window.hacked === undefined")
        assert page.locator("img").count() == 0


def test_runs_are_compared(seen: Any, runs: Path) -> None:
    path = report([runs / "good", runs / "fault", runs / "crashed"], runs / "three.html")
    s = seen()
    page = s.open(path.as_uri())
    table = page.locator("[data-settings]").inner_text()
    assert "peak lr" in table
    assert "0.02, 2, 0.004" in table, "the fault shows among the settings"
    assert page.locator("[data-state=layer]").input_value() == "2.0.weight", "the layer that differs most comes first"
    page.locator("[data-runs] input").nth(2).uncheck()
    assert s.data("compare-norm-lines")["name"] == ["good", "fault"]
    page.locator("[data-state=x]").first.select_option("time")
    assert s.data("compare-norm-lines")["xs"][0][-1] < 60
    page.locator("[data-state=layout]").select_option("side")
    assert page.locator("[data-run]").nth(0).is_visible()
    assert not page.locator("[data-run]").nth(2).is_visible()
    page.get_by_role("tab", name="fault").click()
    assert page.locator("#run1 .sentence").inner_text().startswith("Finished")
    curve = page.locator("#run1 .spark svg").first
    curve.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#run1 .spark p").first.inner_text().startswith("step 1: rotation")
    page.get_by_role("tab", name="Geometry").click()
    arrows = s.data("geometry-whole-arrows")
    page.locator("[data-which]").select_option("fault")
    assert "fault" in page.locator("#geometry .sentence").inner_text()
    assert s.data("geometry-whole-arrows") != arrows
    assert "g.run=1" in page.url


def test_compare_shows_how_runs_ended_and_how_far_they_are_from_the_best(seen: Any, tmp_path: Path) -> None:
    paths = [example_runs.logged(tmp_path / f"run{i}", lr=lr, meta={}) for i, lr in enumerate((0.25, 0.125, 0.5))]
    page = seen().open(report(paths, tmp_path / "three.html").as_uri())
    table = [row.split("\t") for row in page.locator("[data-losses]").inner_text().splitlines()]
    assert [h.strip() for h in table[0]] == ["", "loss, mean of the last 5 %", "loss, last", "val_loss, best"]
    finals = []
    for path in paths:
        with eq.Run.open(path) as run:
            assert run.final is not None
            assert run.best is not None
            finals.append((run.final.mean, run.final.last, run.best.value))
    least = [min(values) for values in zip(*finals, strict=True)]
    for (name, *cells), values, path in zip(table[1:], finals, paths, strict=True):
        gaps = [v - low for v, low in zip(values, least, strict=True)]
        wanted = [f"{v:.4g}" + (f" (+{gap:.4g})" if gap else "") for v, gap in zip(values, gaps, strict=True)]
        assert (name.strip(), [c.strip() for c in cells]) == (path.name, wanted)
    assert page.locator("[data-losses] td").nth(2).get_attribute("title") == "val_loss, at step 20"
    assert "loss" not in page.locator("[data-settings]").inner_text(), "each number is once on the page"
    page.locator("[data-runs] input").nth(1).uncheck()
    assert page.locator("[data-losses] tr").count() == 3


def test_a_page_that_is_loading_says_so(seen: Any, live: str, file: str, tmp_path: Path) -> None:
    s = seen()
    s.page.route_web_socket("**/ws*", lambda socket: None)  # no number ever comes
    for address in ("run?run=good", "compare?run=good&run=fault", "plan"):
        s.page.goto(f"{live}/{address}")
        place = s.page.locator("[data-loading]").first
        place.wait_for(state="visible")
        assert "oading" in place.inner_text()  # still, where the machine is slow
        assert not s.page.locator("h1").first.is_visible(), "nothing that looks like an empty run"
    s.page.unroute_all()
    s.page.goto("about:blank")
    s.wrong.clear()  # of the sockets that were taken away
    page = s.open(file)
    assert not page.locator("[data-loading]").first.is_visible()
    assert page.locator("h1").first.is_visible()
    # A file says it before its scripts have run.
    bare = seen()
    text = Path(file.removeprefix("file://")).read_text()
    early = tmp_path / "early.html"
    early.write_text(text[: text.index('<script type="application/json" id="figures">')])
    bare.page.goto(early.as_uri())
    assert bare.page.locator("[data-loading]").first.is_visible()
    assert not bare.page.locator("h1").first.is_visible()


def test_a_geometry_page_that_is_loading_does_not_say_that_there_is_nothing(seen: Any, live: str) -> None:
    s = seen()
    nothing = "Nothing to draw: no step of a matrix has been measured."
    words = "(() => { const place = document.querySelector('#geometry [data-none]');"
    words += " return place.hidden ? '' : place.textContent; })()"
    for run, at_last in (("good", ""), ("empty", nothing)):
        page = s.open(f"{live}/run?run={run}#page=geometry")
        assert page.evaluate(words) in ("Loading the measured steps…", at_last)
        until(page, f"{words} === {at_last!r}")


def test_a_slider_moves_the_plan(seen: Any, live: str) -> None:
    s = seen()
    page = s.open(f"{live}/plan")
    before = s.data("plan-rotation-lines")["ys"][0]
    page.locator("[data-knob=lr]").fill("-2")
    until(page, "document.querySelector('[data-title]').textContent.includes('lr 0.01')")
    assert s.data("plan-rotation-lines")["ys"][0] != before
    expected = eq.plan(
        optimizer="adamw", lr=0.01, weight_decay=0.1, betas=(0.9, 0.95), steps=20_000, schedule="cosine", warmup=500
    )
    assert expected.main.forecast is not None
    assert s.data("plan-rotation-lines")["ys"][0][-1] == pytest.approx(expected.main.forecast.rotation[-1], rel=1e-5)
    page.get_by_role("button", name="Pin this setting").click()
    page.wait_for_selector(".key >> nth=1")
    page.locator("[data-knob=optimizer]").select_option("lion")
    until(page, "document.querySelector('[data-title]').textContent.startsWith('Lion')")
    assert s.data("plan-rotation-lines")["name"] == ["this", "pinned"]
    page.locator("[data-exact=warmup]").fill("30000")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-error]:not([hidden])")
    assert "must be less than steps" in page.locator("[data-error]").inner_text()
    page.locator("[data-exact=warmup]").fill("200")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-error]", state="hidden")
    address, curves = page.url, s.data("plan-rotation-lines")
    again = seen()
    page = again.open(address)
    until(page, "document.querySelectorAll('.key').length === 2")
    assert again.data("plan-rotation-lines") == curves, "a link shows both settings"


def test_a_plan_in_a_file_moves_too(seen: Any, tmp_path: Path) -> None:
    plan = eq.plan(optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=3000, schedule="cosine", warmup=100)
    s = seen(permissions=["clipboard-read", "clipboard-write"])
    page = s.open(write_plan(plan, tmp_path / "plan.html").as_uri())
    before = s.data("plan-rms-lines")
    page.get_by_role("button", name="Pin this setting").click()
    page.locator("[data-knob=weight_decay]").press("ArrowRight")
    value = float(page.locator("[data-exact=weight_decay]").input_value())
    assert value > 0.1
    moved = s.data("plan-rms-lines")
    assert moved["ys"][1] == before["ys"][0]
    assert moved["ys"][0] != before["ys"][0]
    page.get_by_role("button", name="Copy as command").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f"--wd {value}" in copied


def test_a_phone_shows_it_without_scrolling_sideways(seen: Any, file: str, live: str) -> None:
    for address in (file, f"{file}#page=geometry", f"{live}/", f"{live}/plan", f"{live}/compare?run=good&run=fault"):
        page = seen(width=390, has_touch=True, is_mobile=True).open(address)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= 391, address


def executed(folder: Path, *cells: str) -> list[Any]:
    """What a kernel of Jupyter gives for each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_notebook_shows_the_pages(seen: Any, runs: Path, tmp_path: Path) -> None:
    cells = ("import equipoise as eq", "eq.Run.open('good').show()", "eq.plan(lr=1e-3, steps=100).show()")
    first, *outputs = executed(runs, *cells)
    assert not first
    assert [len(made) for made in outputs] == [1, 1], "one thing each, and no words beside it"
    path = tmp_path / "notebook.html"
    shown = "".join(made[0].data["text/html"] for made in outputs)
    path.write_text(f"<!doctype html><body data-ready=1>{shown}", encoding="utf-8")
    page = seen().open(path.as_uri())
    inner, plan = (page.frame_locator(f"div:nth-of-type({i}) > iframe") for i in (1, 2))
    plan.locator("body[data-ready]").wait_for(state="attached")
    assert plan.locator("[data-exact=lr]").input_value() == "0.001"
    inner.locator("body[data-ready]").wait_for(state="attached")
    inner.get_by_role("button", name="Clear").click()
    assert "None yet" in inner.locator("[data-chips]").inner_text()
    inner.get_by_label("log y").check()


@pytest.mark.parametrize("width", [1280, 420])
def test_the_forward_pass_is_drawn_where_there_is_one(tmp_path: Path, runs: Path, seen: Any, width: int) -> None:
    run = test_forward_view.made(tmp_path / "run")
    one = seen(width=width)
    page = one.open(report([run], tmp_path / "page.html").as_uri())
    card = page.locator("[data-forward]")
    assert card.is_visible()
    lines = one.data("run-forward-lines")
    assert lines["name"] == ["layers.1", "layers.2", "layers.0"], "the chosen layer's comes last, on top"
    assert lines["color"][0] == lines["color"][1] != lines["color"][2]
    card.locator("select").select_option("attention_logit")
    lines = one.data("run-forward-lines")
    assert lines["name"] == ["layers.0.attention"]
    assert lines["ys"][0][0] == 2.0
    assert len(one.data("run-forward-band")["name"]) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    other = seen(width=width).open(report([runs / "good"], tmp_path / "other.html").as_uri())
    assert other.locator("[data-forward]").is_hidden()
