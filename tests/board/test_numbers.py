"""Never a wrong number: all that pages, list and terminal show of a run with known answers, read off what is drawn."""

import base64
import csv
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.board import known_run
from tests.board.known_run import STEPS
from typer.testing import CliRunner

import equipoise as eq
from equipoise.board import report_html
from equipoise.board.files import plan_html
from equipoise.board.listing import Runs
from equipoise.cli import app

EVERY = 7
"""Neither the peak of lr nor the last step is measured."""

MEASURED = known_run.measured_steps(EVERY)
TRUTH = {name: known_run.truth(name) for name in known_run.SHAPES}
MEAN, LAST, BEST = float(known_run.LOSS[-20:].mean()), float(known_run.LOSS[-1]), min(known_run.VALIDATION.values())
BEST_STEP = min(known_run.VALIDATION, key=lambda step: known_run.VALIDATION[step])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    known_run.train(root / "a", every=EVERY)
    known_run.train(root / "b", every=64)
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> dict[str, dict[str, Any]]:
    return sources(report_html([root / "a"]))


@pytest.fixture(scope="module")
def both(root: Path) -> dict[str, dict[str, Any]]:
    return sources(report_html([root / "a", root / "b"]))


def sources(html: str) -> dict[str, dict[str, Any]]:
    """The columns of every source of a page, by name: what its scripts draw, and nothing else."""
    texts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.S)
    (packed,) = [json.loads(t) for t in texts if t.lstrip().startswith("{") and '"roots"' in t]
    found: dict[str, dict[str, Any]] = {}
    models: list[str] = []

    def walk(thing: Any) -> None:
        if isinstance(thing, dict):
            if thing.get("type") == "object" and "name" in thing.get("attributes", {}):
                models.append(thing["attributes"]["name"])
            if thing.get("name") == "ColumnDataSource" and "attributes" in thing:
                mine = thing["attributes"]
                entries = mine.get("data", {}).get("entries", [])
                if "name" in mine:
                    found[mine["name"]] = {key: plain(value) for key, value in entries}
            for value in thing.values():
                walk(value)
        elif isinstance(thing, list):
            for value in thing:
                walk(value)

    walk(packed)
    assert len(models) == len(set(models)), "scripts find models by their names"
    return found


def plain(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "ndarray":
        data = value["array"]
        raw = (
            gzip.decompress(base64.b64decode(data["data"]))
            if isinstance(data, dict)
            else np.array(data, value["dtype"]).tobytes()
        )
        return np.frombuffer(raw, value["dtype"]).reshape(value["shape"]).astype(np.float64)
    return value


def notes(found: dict[str, dict[str, Any]], key: str = "run") -> dict[str, Any]:
    return json.loads(found[f"{key}-notes"]["json"][0])


def number(text: str) -> float:
    """The first number of a text, as pages write them."""
    said = re.search(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", text)
    assert said, text
    return float(said.group().replace(",", ""))


def test_every_layer_is_drawn_as_it_was(page: dict[str, dict[str, Any]]) -> None:
    layers, steps = page["run-layers"], page["run-axis"]["step"]
    assert steps.tolist() == MEASURED
    assert page["run-axis"]["tokens"].tolist() == [known_run.TOKENS * s for s in MEASURED]
    names = layers["name"]
    assert sorted(names) == sorted(known_run.SHAPES)
    drawn = [q for q, v in layers.items() if isinstance(v, np.ndarray)]
    for quantity in ("norm", "rotation", "relative_update", "effective_lr", "radial_decay", "grad_weight_cos", "c_err"):
        assert quantity in drawn
    for quantity in drawn:
        if quantity.endswith("_forecast"):
            continue  # below
        for i, name in enumerate(names):
            if name == "1.bias" and quantity.endswith(("_low", "_high")):
                continue  # it has no neurons, and no band
            expected, where = TRUTH[name].at(quantity, MEASURED), f"{quantity}, {name}"
            np.testing.assert_allclose(layers[quantity][i], expected, rtol=2e-5, atol=2e-6, err_msg=where)


def test_forecasts_are_those_of_every_step_taken(page: dict[str, dict[str, Any]]) -> None:
    layers = page["run-layers"]
    for name in known_run.MATRICES:
        i, f = layers["name"].index(name), known_run.forecast(name)
        for quantity in ("norm", "rotation"):
            expected = getattr(f, quantity)[np.array(MEASURED) - 1]
            np.testing.assert_allclose(layers[f"{quantity}_forecast"][i], expected, rtol=2e-3, err_msg=name)


@pytest.mark.parametrize("run", ["run0", "run1"])
def test_settings_are_those_of_every_step_taken(both: dict[str, dict[str, Any]], run: str) -> None:
    drawn = both[f"{run}-settings"]
    steps = drawn["step"]
    assert steps[0] == 1
    assert steps[-1] == STEPS, "it was measured to step 399 or 384, and trained to 400"
    every = np.arange(1, STEPS + 1)
    for group, decay in ((0, known_run.DECAY), (1, 0.0)):
        # As the page draws it: straight lines between the points.
        np.testing.assert_allclose(np.interp(every, steps, drawn[f"lr/{group}"]), known_run.LR, rtol=2e-3)
        assert drawn[f"lr/{group}"].max() == pytest.approx(known_run.PEAK, rel=1e-12), "the peak was not measured"
        assert steps[np.argmax(drawn[f"lr/{group}"])] == known_run.WARMUP
        np.testing.assert_allclose(drawn[f"weight_decay/{group}"], decay, rtol=1e-12)
        left = [known_run.init_share(int(s), decay) for s in steps]
        np.testing.assert_allclose(drawn[f"init_share/{group}"], left, rtol=2e-3)
        remembered = [known_run.effective_steps(int(s), decay) for s in steps]
        np.testing.assert_allclose(drawn[f"memory/{group}"], remembered, rtol=2e-3)


def test_memory_is_of_every_step_taken(both: dict[str, dict[str, Any]]) -> None:
    share = known_run.contributions(STEPS)
    for run in ("run0", "run1"):
        drawn = both[f"{run}-remembered"]
        assert drawn["step"].tolist() == list(range(1, STEPS + 1))
        np.testing.assert_allclose(drawn["share"], share / share.mean(), rtol=2e-3)


def test_what_was_logged_is_drawn(page: dict[str, dict[str, Any]]) -> None:
    logged = page["run-logged"]
    assert logged["step"].tolist() == list(range(1, STEPS + 1))
    np.testing.assert_allclose(logged["v:loss"], known_run.LOSS, rtol=1e-12)
    there = np.isfinite(logged["v:val_loss"])
    assert dict(zip(logged["step"][there].astype(int).tolist(), logged["v:val_loss"][there], strict=True)) == (
        pytest.approx(known_run.VALIDATION)
    )


def test_spectra_are_those_of_the_matrices(page: dict[str, dict[str, Any]]) -> None:
    drawn, steps = page["run-spectra"], page["run-spectra-axis"]["step"].astype(int)
    assert steps.tolist() == MEASURED
    names = page["run-layers"]["name"]
    assert len(drawn) == 6
    for key, values in drawn.items():
        kind, _, what = key.partition("_")
        for name in known_run.MATRICES:
            of = TRUTH[name].weights if kind == "weight" else [None, *TRUTH[name].updates]
            expected = [known_run.spectrum(of[s])[what] for s in steps]
            np.testing.assert_allclose(values[names.index(name)], expected, rtol=1e-4, atol=1e-5, err_msg=key)


def test_triangles_are_those_of_the_steps(page: dict[str, dict[str, Any]]) -> None:
    drawn, steps = page["geometry-triangles"], notes(page, "geometry")["steps"]
    assert set(steps) <= set(MEASURED)
    assert steps[-1] == MEASURED[-1]
    for i, name in enumerate(drawn["name"]):
        for quantity in ("before", "after", "along", "across", "update", "decay"):
            expected = TRUTH[name].at(quantity, steps)
            np.testing.assert_allclose(drawn[quantity][i], expected, rtol=1e-4, atol=1e-6, err_msg=quantity)


def test_the_words_of_a_run_page(page: dict[str, dict[str, Any]]) -> None:
    said = notes(page)
    facts = dict(said["facts"])
    assert re.match(rf"Finished after 400 steps in .*, loss {MEAN:.4g} \(mean of the last 5 %\)\.$", said["sentence"])
    expected = {
        "optimizer": "SignSGDM", "peak lr": "0.02", "peak weight decay": "0.5, 0",
        "measured": f"{len(MEASURED)} of 400 steps, up to step {MEASURED[-1]}",
        "loss, mean of the last 5 %": f"{MEAN:.4g}", "loss, last": f"{LAST:.4g}",
        "best val_loss": f"{BEST:.4g} at step {BEST_STEP}", "tensors": "3, 2 of them matrices",
    }  # fmt: skip
    assert facts.items() >= expected.items()
    quarters = [float(x) for x in facts["lr over the run"].split(" → ")]
    assert quarters == pytest.approx([known_run.LR[s - 1] for s in (1, 101, 200, 300, 400)], rel=6e-3)
    assert number(facts["batches remembered"]) == pytest.approx(known_run.effective_steps(STEPS), rel=5e-3)
    assert facts["batches remembered"].endswith(" of 400")
    assert number(facts["initialisation left"]) == pytest.approx(100 * known_run.init_share(STEPS), rel=5e-3)


def test_equal_runs_compare_as_equal(both: dict[str, dict[str, Any]]) -> None:
    said = notes(both, "compare")
    differs = {row["name"] for row in said["settings"] if row["differs"]}
    assert differs <= {"measured", "findings"}, "how often they were measured, and nothing else"
    values = {row["name"]: row["values"] for row in said["settings"]}
    assert len(set(values["lr over the run"])) == 1
    assert values["peak lr"] == ["0.02", "0.02"]
    ends = {row["name"]: [cell["text"] for cell in row["cells"]] for row in said["losses"]}
    expected = {"loss, mean of the last 5 %": MEAN, "loss, last": LAST, "val_loss, best": BEST}
    assert ends == {name: [f"{value:.4g}"] * 2 for name, value in expected.items()}
    assert not [cell["gap"] for row in said["losses"] for cell in row["cells"] if cell["gap"]]
    for shown in values["batches remembered"]:
        assert number(shown) == pytest.approx(known_run.effective_steps(STEPS), rel=5e-3)
    few = said["runs"][1]["tally"]
    assert "No problems" not in few, "7 measured steps say nothing"


def test_the_list(root: Path) -> None:
    names = ["name", "steps", "measured", "measured_to", "loss", "last", "validation", "validation_step", "lr", "wd"]
    told = Runs(root).answer({"columns": ",".join([*names, "curve"]), "sort": "name"})
    assert [c["name"] for c in told["columns"]] == [*names, "curve"]
    for row, name, every in zip(told["rows"], "ab", (EVERY, 64), strict=True):
        steps = known_run.measured_steps(every)
        *texts, curve = row["cells"]
        expected = [name, "400", str(len(steps)), str(steps[-1]), f"{MEAN:.4g}", f"{LAST:.4g}", f"{BEST:.4g}"]
        assert texts == [*expected, str(BEST_STEP), "0.02", "0.5"]
        # The small curve: means of neighbours, in their order, from first to last.
        assert list(curve) == pytest.approx(known_run.LOSS.reshape(40, 10).mean(1), rel=1e-3)


def test_the_list_of_what_was_logged_and_of_the_meta(root: Path) -> None:
    told = Runs(root).answer({"columns": "name,val_loss,tokens_per_step", "sort": "name"})
    last = f"{known_run.VALIDATION[STEPS]:.4g}"
    assert [row["cells"] for row in told["rows"]] == [[name, last, str(known_run.TOKENS)] for name in "ab"]


def test_the_line_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "equipoise"):
        known_run.train(tmp_path / "a", every=EVERY)
    (line,) = [r.getMessage() for r in caplog.records if "finished after" in r.getMessage()]
    assert f"finished after {STEPS} steps, loss {MEAN:.4g} (mean of the last 5 %)" in line
    assert f"{len(MEASURED)} of {STEPS} steps measured, up to step {MEASURED[-1]}; " in line


def terminal(*words: str, command: str = "watch", width: int = 200) -> list[str]:
    done = CliRunner().invoke(app, [command, *words], env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_the_terminal_table(root: Path) -> None:
    lines = terminal(str(root / "a"), "--layers", "*", "--top", "9")
    text = "\n".join(lines)
    assert "step 400  " in lines[0] or lines[0].rstrip().endswith("step 399")
    assert f"{len(MEASURED)} of 400 steps measured, up to step {MEASURED[-1]}" in lines[0]
    assert f"loss {MEAN:.4g} (mean of the last 5 %), last {LAST:.4g} at step 400" in text
    assert f"best val_loss {BEST:.4g} at step {BEST_STEP}" in text
    assert "lr 0.002 (peak 0.02) · weight decay 0 to 0.5" in text
    (memory,) = [line for line in lines if line.startswith("memory")]
    low, high = known_run.effective_steps(STEPS, 0.0), known_run.effective_steps(STEPS)
    said = re.search(r"memory +(\S+) to (\S+) of 400 steps · initialisation left (\S+) to (\S+)", memory)
    assert said, memory
    assert [float(x) for x in said.groups()] == pytest.approx([low, high, known_run.init_share(STEPS), 1.0], rel=6e-3)
    (head,) = [line for line in lines if line.startswith("layer")]
    columns = re.split(r"\s{2,}", head.strip())
    assert columns == [
        "layer", "norm", "rotation", "÷ median", "÷ predicted", "‖U‖/‖w‖", "λ_e", "C_err", "angle", "rotation so far"
    ]  # fmt: skip
    last = MEASURED[-1]
    rotation = {name: float(TRUTH[name].at("rotation", [last])[0]) for name in known_run.SHAPES}
    median = float(np.median([rotation[n] for n in known_run.MATRICES]))
    rows = {line.split()[0]: line.split() for line in lines[lines.index(head) + 2 :] if line.startswith(("0", "1"))}
    assert len(rows) == 3
    for name, short in (("0.weight", "0"), ("1.weight", "1"), ("1.bias", "1.bias")):
        shown = dict(zip(columns[1:-1], map(float, rows[short][1:-1]), strict=True))
        now = {q: float(TRUTH[name].at(q, [last])[0]) for q in TRUTH[name].values}
        predicted = known_run.forecast(name).rotation[last - 1]
        expected = {
            "norm": now["norm"], "rotation": now["rotation"], "÷ median": now["rotation"] / median,
            "÷ predicted": now["rotation"] / predicted, "‖U‖/‖w‖": now["relative_update"],
            "λ_e": now["total_decay"], "C_err": now["c_err"], "angle": now["angle"],
        }  # fmt: skip
        for column, value in expected.items():  # three digits, ratios two places
            tolerance = 6e-3 * (1 if column.startswith("÷") else abs(value))
            assert abs(shown[column] - value) < tolerance, (name, column)


def test_rotation_over_its_forecast_is_that_of_compare(root: Path) -> None:
    lines = terminal(str(root / "a"))
    with eq.Run.open(root / "a") as run:
        for name in known_run.MATRICES:
            found = run.compare(name)
            (cells,) = [x.split() for x in lines if x.startswith(f"{name[0]} ") and len(x.split()) == 10]
            assert float(cells[4]) == pytest.approx(found.rotation[-1] / found.plain.rotation[-1], abs=6e-3)


def test_the_terminals_list(root: Path) -> None:
    lines = terminal(str(root), command="runs", width=250)
    assert "mean of" in "".join(lines), "what kind of loss it is"
    for name, every in (("a", EVERY), ("b", 64)):
        (line,) = [x.split() for x in lines if x.startswith(f"{name} ")]
        steps = len(known_run.measured_steps(every))
        expected = ["finished", "400", str(steps), f"{MEAN:.4g}", f"{BEST:.4g}", "0.02", "0.5", "SignSGDM"]
        assert [x for x in line if x in expected][: len(expected)] == expected, line


def test_an_export_has_the_numbers(root: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(root / "a"), "-o", str(tmp_path / "a.csv")])
    assert done.exit_code == 0, done.output
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    for quantity in ("norm", "rotation", "total_decay", "angle"):
        for name in known_run.SHAPES:
            mine = {
                int(r["step"]): float(r["value"]) for r in rows
                if (r["quantity"], r["tensor"], r["quantile"], r["neuron"]) == (quantity, name, "", "")
            }  # fmt: skip
            assert list(mine) == MEASURED
            np.testing.assert_allclose(list(mine.values()), TRUTH[name].at(quantity, MEASURED), rtol=2e-5, atol=2e-6)
    losses = [float(r["value"]) for r in rows if r["quantity"] == "loss"]
    np.testing.assert_allclose(losses, known_run.LOSS, rtol=1e-12)


def test_the_page_of_a_plan() -> None:
    plan = eq.plan(
        optimizer="signsgdm", lr=known_run.PEAK, weight_decay=known_run.DECAY, steps=STEPS, schedule="cosine",
        warmup=known_run.WARMUP, betas=(known_run.BETA, 0.999),
    )  # fmt: skip
    found = sources(plan_html(plan))
    said, curves = notes(found, "plan"), found["plan-curves"]
    (row,) = [
        i for i, r in enumerate(said["rows"]) if (r["lr"], r["weight_decay"]) == (known_run.PEAK, known_run.DECAY)
    ]
    at = curves["step"][row].astype(int)
    lr = plan.setting.lr(0)
    kept = 1 - lr * known_run.DECAY
    c = np.array([lr[j] * np.prod(kept[j + 1 :]) for j in range(STEPS)])
    np.testing.assert_allclose(curves["lr"][row], lr[at - 1], rtol=1e-6)
    np.testing.assert_allclose(curves["left"][row], np.cumprod(kept)[at - 1], rtol=1e-5)
    np.testing.assert_allclose(curves["share"][row], (c / c.mean())[at - 1], rtol=1e-5)
    summary = dict(said["rows"][row]["summary"])
    assert number(summary["initialisation left"]) == pytest.approx(100 * np.prod(kept), rel=5e-3)
    assert number(summary["batches remembered"]) == pytest.approx(c.sum() ** 2 / (c @ c), rel=5e-3)
    assert lr.max() == pytest.approx(known_run.PEAK)


def test_a_run_that_ends_as_nan_shows_nan_everywhere(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path / "a") as watch:
        for step in range(1, 41):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            watch.log(loss=1.25 if step < 39 else math.nan)
    said = notes(sources(report_html([tmp_path / "a"])))
    assert ", loss NaN (mean of the last 5 %)" in said["sentence"]
    assert dict(said["facts"])["loss, last"] == "NaN"
    (row,) = Runs(tmp_path).answer({"columns": "loss,last"})["rows"]
    assert row["cells"][-2:] == ["NaN", "NaN"]
    assert "loss NaN (mean of the last 5 %), last NaN at step 40" in "\n".join(terminal(str(tmp_path / "a")))
    assert "NaN" in "\n".join(terminal(str(tmp_path), command="runs"))
