"""W&B's offline file has what was sent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.monitor.loops import network, train
from tests.monitor.sinks.sent_run import right, run
from tests.monitor.sinks.wandb_file import history, records, summary

import equipoise as eq
from equipoise.monitor.sinks import WandB


def test_history_alerts_and_summary_are_read_back(tmp_path: Path) -> None:
    run(tmp_path, "wandb")
    rows = history(tmp_path)
    for name, values in right(tmp_path).items():
        assert {step: row[name] for step, row in rows.items() if name in row} == pytest.approx(values), name
    (alert,) = [r.alert for r in records(tmp_path) if r.WhichOneof("record_type") == "alert"]
    assert (alert.title, alert.level) == ("equipoise: update-lost", "WARN")
    text = "step 5: 0.weight: evidence. Expected: expected. To do: advice. (source)"
    assert alert.text == text
    assert summary(tmp_path)["equipoise/findings/update-lost"] == text
    (about,) = [r.run for r in records(tmp_path) if r.WhichOneof("record_type") == "run"]
    assert about.project == "equipoise"
    assert about.display_name == tmp_path.name


def test_a_run_that_goes_on_keeps_its_id_and_repeats_no_step(tmp_path: Path) -> None:
    run(tmp_path / "a", "wandb")
    (first,) = (tmp_path / "a/wandb").glob("offline-run-*")
    first.rename(tmp_path / "a" / first.name)
    run(tmp_path / "a", "wandb", resume=3, first=10)
    (about,) = [r.run for r in records(tmp_path / "a") if r.WhichOneof("record_type") == "run"]
    assert first.name.endswith(about.run_id)
    assert list(history(tmp_path / "a")) == [6, 7, 8], "4 and 5 were sent before"


def test_an_active_run_keeps_its_own_steps(tmp_path: Path) -> None:
    import wandb

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with wandb.init(dir=tmp_path, project="mine") as mine:
        with eq.watch(model, optimizer, tmp_path / "run", every=1, strict=True, sinks=["wandb"]) as watch:

            def after(step: int, loss: torch.Tensor) -> None:
                watch.log(loss=loss)
                assert watch._sending._threads[0].settle()
                mine.log({"mine": step}, step=10 * (step + 1))

            train(model, optimizer, 4, after)
        assert wandb.run is mine
        mine.log({"mine": 99}, step=50)
    rows = history(tmp_path)
    assert {step: row["mine"] for step, row in rows.items()} == {10: 0, 20: 1, 30: 2, 40: 3, 50: 99}
    values = right(tmp_path / "run")["equipoise/rotation/max"]
    sent = {row["equipoise/step"]: row["equipoise/rotation/max"] for row in rows.values() if "equipoise/step" in row}
    assert sent == pytest.approx(values)


def test_without_a_login_the_run_is_kept_offline(tmp_path: Path) -> None:
    code = (
        "import sys; from equipoise.monitor.sinks import WandB; sink = WandB(directory=sys.argv[1], id='abc'); "
        "sink.send(3, {'a': 1.5}); sink.close('finished')"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    clean |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_SILENT": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=clean, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "offline" in done.stderr
    assert history(tmp_path)[3]["a"] == 1.5


def test_a_crash_is_told(tmp_path: Path) -> None:
    sink = WandB(directory=tmp_path)
    sink.close("crashed")
    (exit,) = [r.exit for r in records(tmp_path) if r.WhichOneof("record_type") == "exit"]
    assert exit.exit_code == 1
