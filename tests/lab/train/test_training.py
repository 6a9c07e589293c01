"""Trials: every task learns, a killed one ends as if it had not been, and a diverged one is recorded."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import forked

import equipoise as eq
from equipoise.lab.data import Data, Split, load
from equipoise.lab.models import make
from equipoise.lab.train import optimizers, task
from equipoise.lab.train.result import Result
from equipoise.lab.train.training import CHECK, train
from equipoise.lab.train.trial import Trial

QUICK = Trial(lr=3e-3, weight_decay=0.1, steps=100, schedule="cosine", warmup=10, model_options={"width": 32},
              evaluate=40, watch={"every": 5})  # fmt: skip


def test_a_trial_is_its_fields() -> None:
    assert QUICK.key == Trial.from_json(QUICK.to_json()).key
    assert QUICK.vary({"optimizer_options.betas": (0.9, 0.95)}).optimizer_options == {"betas": [0.9, 0.95]}
    keys = {QUICK.vary(change).key for change in ({}, {"seed": 1}, {"model_options.width": 33}, {"lr": np.float64(1)})}
    assert len(keys) == 4
    with pytest.raises(ValueError, match="field = 'learning_rate': must be one of"):
        QUICK.vary({"learning_rate": 1})
    with pytest.raises(ValueError, match=r"watch = .*: must be JSON-serialisable"):
        Trial(watch={"sinks": [object()]})


def test_last_digits_are_no_other_trial() -> None:
    """Of a computed number they differ from processor to processor."""
    lr, curve = 0.007243142957794015, [1 / 3, 0.1 + 0.2]
    one = QUICK.vary({"lr": lr, "optimizer_options.curves": {"lr": {"array": curve}}})
    other = QUICK.vary({
        "lr": np.nextafter(lr, 1), "optimizer_options.curves": {"lr": {"array": np.nextafter(curve, 0).tolist()}},
    })  # fmt: skip
    assert one == other
    assert one.key == other.key
    assert one.key != one.vary({"lr": lr * (1 + 1e-8)}).key
    assert one.lr == pytest.approx(lr, rel=1e-10)


TASKS = {
    "classes": Trial(steps=60, lr=3e-3),
    "images": Trial(model="resnet", model_options={"size": "resnet-8"}, steps=40, lr=1e-2, channels_last=True),
    "regression": Trial(data="regression", model_options={"depth": 0}, optimizer="sgdm", lr=0.01, steps=200),
    "tokens": Trial(data="text", data_options={"size": 20_000, "length": 32}, model="gpt", lr=1e-2, steps=60),
    "pairs": Trial(data="phonemes", data_options={"size": 3000}, model="seq2seq", lr=3e-3, steps=120, warmup=30),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_learns(name: str, tmp_path: Path) -> None:
    result = train(TASKS[name], tmp_path)
    assert result.status == "finished"
    with eq.Run.open(tmp_path / "run") as run:
        losses = run.series("train_loss").values
    assert losses[-1] < 0.8 * losses[0]
    if name in ("classes", "images"):
        assert result.metrics["test_accuracy"] > 0.8
    if name == "regression":
        assert result.metrics["test_loss"] < 0.1


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    low = train(QUICK.vary({"precision": "bfloat16"}), tmp_path / "low")
    high = train(QUICK, tmp_path / "high")
    assert low.weights != high.weights
    assert low.metrics["test_accuracy"] == pytest.approx(high.metrics["test_accuracy"], abs=0.05)


KILLED = {
    "adamw": QUICK,
    "lion": QUICK.vary({"optimizer": "lion", "lr": 1e-3}),
    "relative_eps": QUICK.vary({"optimizer": "adamw_relative_eps"}),
    "switch": QUICK.vary({"optimizer": "switch", "optimizer_options": {"second": {"lr": 0.1}, "at": 30, "blend": 60}}),
}


@pytest.mark.parametrize("trial", KILLED.values(), ids=KILLED)
def test_a_killed_trial_goes_on_bit_for_bit(trial: Trial, tmp_path: Path) -> None:
    whole = train(trial, tmp_path / "whole")
    script = Path(__file__).with_name("killed_training.py")
    done = forked.run(script, trial.to_json(), tmp_path / "killed", 60)
    assert done.returncode == -9, done.stderr
    assert (tmp_path / "killed" / "checkpoint.pt").exists()
    assert not (tmp_path / "killed" / "result.json").exists()
    seen: list[int] = []
    result = train(trial, tmp_path / "killed", progress=lambda step, _: seen.append(step))
    assert seen[0] > CHECK
    assert result.weights == whole.weights
    assert result.metrics == whole.metrics
    assert result.tests == whole.tests
    assert not (tmp_path / "killed" / "checkpoint.pt").exists()
    with eq.Run.open(tmp_path / "killed" / "run") as a, eq.Run.open(tmp_path / "whole" / "run") as b:
        late = a.series("norm", "body.1.weight", start=60).values
        assert len(late) == 9
        assert (late == b.series("norm", "body.1.weight", start=60).values).all()


def test_a_trial_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    def stop(step: int, _: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(QUICK, tmp_path / "a", progress=stop)
    assert train(QUICK, tmp_path / "a").weights == train(QUICK, tmp_path / "b").weights


def test_a_result_is_stored_and_not_made_twice(tmp_path: Path) -> None:
    first = train(QUICK, tmp_path)

    def never(step: int, _: float) -> None:
        raise AssertionError

    assert train(QUICK, tmp_path, progress=never) == first == Result.read(tmp_path)
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["data"] == load("digits").checksum
    assert stored["versions"]["torch"] == torch.__version__
    with pytest.raises(ValueError, match="has the result of another trial"):
        train(QUICK.vary({"seed": 1}), tmp_path)


def test_divergence_is_a_result(tmp_path: Path) -> None:
    far = Trial(data="regression", model_options={"depth": 0}, optimizer="sgdm", lr=5.0, steps=1000)
    result = train(far, tmp_path / "infinite")
    assert result.status == "diverged"
    assert result.steps < 100
    assert not result.metrics
    assert Result.read(tmp_path / "infinite") == result
    # A finite loss above the limit, which is below 1 here so that a loss that falls is above it, too.
    limited = train(QUICK.vary({"limit": 0.01}), tmp_path / "limit")
    assert (limited.status, limited.steps) == ("diverged", CHECK)


def test_tests_are_counted_by_hand() -> None:
    x, y = torch.randn(7, 3), torch.tensor([0, 1, 1, 0, 1, 0, 0])
    part = Split(x, y)
    model = make("mlp", Data("own", "classes", part, part, 2), 0, depth=0)
    found = task.evaluate("classes", model, part, size=3)
    P = torch.softmax(model(x), 1).detach()
    assert found["accuracy"] == pytest.approx(float((P.argmax(1) == y).float().mean()))
    assert found["loss"] == pytest.approx(float(-P[range(7), y].log().mean()), rel=1e-5)
    assert model.training


@pytest.mark.parametrize("name", optimizers.MAKERS)
def test_every_optimizer_can_be_asked_for(name: str, tmp_path: Path) -> None:
    trial = QUICK.vary({"optimizer": name, "lr": 1e-3, "steps": 5, "warmup": 0, "watch": {"every": 1}})
    model = make("mlp", load("digits"), 0)
    optimizer, schedule = optimizers.make(trial, model)
    assert {g["weight_decay"] for g in optimizer.param_groups if g["name"] == "gain"} == {0.0}
    before = [p.clone() for p in model.parameters()]
    sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    schedule.step()
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_probes_are_tested_apart(tmp_path: Path) -> None:
    data = load("digits", test=0.5)
    assert data.test is not None
    half = len(data.test) // 2
    probes = {"a": Split(data.test.x[:half], data.test.y[:half]), "b": Split(data.test.x[half:], data.test.y[half:])}
    probed = dataclasses.replace(data, probes=probes)
    assert probed.checksum != data.checksum
    found = train(Trial(steps=20), tmp_path, data=probed).metrics
    for what in ("loss", "accuracy"):
        mean = (half * found[f"a_{what}"] + (len(data.test) - half) * found[f"b_{what}"]) / len(data.test)
        assert found[f"test_{what}"] == pytest.approx(mean, rel=1e-5)
    with eq.Run.open(tmp_path / "run") as run:
        assert {"test_loss", "a_loss"} & set(run.quantities) == {"test_loss"}, "there may be many probes"
