"""Trials that start from the weights of another: trained once, and said in the trial's identity."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from equipoise.lab.train.start import weights_of
from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial

PARENT = Trial(steps=20, lr=1e-2, model_options={"width": 8})
CHILD = PARENT.vary({"lr": 0.0, "steps": 1, "seed": 5, "model_options.start": asdict(PARENT)})


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_weights_are_the_other_trials_and_trained_once(tmp_path: Path, data_folder: Path) -> None:
    parent = train(PARENT, tmp_path / "parent")
    child = train(CHILD, tmp_path / "child")
    assert child.metrics["test_loss"] == pytest.approx(parent.metrics["test_loss"], rel=0.05)
    assert (
        child.metrics["test_loss"] != train(PARENT.vary({"lr": 0.0, "steps": 1}), tmp_path / "c").metrics["test_loss"]
    )
    (file,) = (data_folder / "weights").glob("*/weights.pt")
    assert file.parent.name == PARENT.key
    made = file.stat().st_mtime_ns
    again = weights_of(PARENT)
    assert file.stat().st_mtime_ns == made
    kept = torch.load(file, weights_only=True)
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert CHILD.key != CHILD.vary({"model_options.start": asdict(PARENT.vary({"lr": 1e-3}))}).key
    file.unlink()
    assert weights_of(PARENT).keys() == kept.keys(), "a result without weights is trained again"


def test_a_new_head_stays_as_it_is_and_another_model_is_refused(tmp_path: Path) -> None:
    wider = CHILD.vary({"data": "classification", "data_options": {"samples": 64, "inputs": 63, "outputs": 3}})
    assert train(wider, tmp_path / "a").status == "finished"
    other = CHILD.vary({"model_options.width": 4})
    with pytest.raises(ValueError, match="start: must be a trial of the same model, but only 12 of 356"):
        train(other, tmp_path / "b")
