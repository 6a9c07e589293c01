"""Every experiment runs at `smoke`, a run experiment is not run again, and one's own is one file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.lab import models
from equipoise.lab.data import load
from equipoise.lab.experiments import catalogue, find
from equipoise.lab.experiments.convex.linear_regression import LinearRegression
from equipoise.lab.experiments.convex.logistic_regression import LogisticRegression
from equipoise.lab.experiments.equilibrium.assumptions import radial
from equipoise.lab.report.claims import Claim, Stat, over_seeds
from equipoise.lab.train import optimizers, task
from equipoise.lab.train.result import RUN, Result
from equipoise.lab.train.run_experiment import run_experiment, write_figure
from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary


@pytest.mark.parametrize("name", catalogue())
def test_an_experiment_at_smoke(name: str, tmp_path: Path) -> None:
    experiment = find(name)
    outcome, done = run_experiment(experiment, tmp_path, preset="smoke")
    assert {d.result.status for d in done} == {"finished"}, [d.result.error for d in done]
    assert outcome.rows
    assert outcome.claims
    names = [claim.name for claim in outcome.claims]
    assert len(set(names)) == len(names)
    assert {claim.statement for claim in outcome.claims} == experiment.statements.keys()
    stored = json.loads((tmp_path / "outcome.json").read_text())
    assert [c["verdict"] for c in stored["claims"]] == [c.verdict for c in outcome.claims]
    assert {t["key"] for t in stored["trials"]} == {d.trial.key for d in done}
    CHECKS[name](outcome)
    assert b"<svg" in (tmp_path / "figure.svg").read_bytes()
    for preset in ("small", "medium", "full"):
        seeds = {t.seed for t in experiment.trials(preset)}
        assert len(seeds) >= 3


def test_a_figure_as_pdf(tmp_path: Path) -> None:
    experiment = find("schedules")
    outcome, _ = run_experiment(experiment, tmp_path, preset="smoke")
    write_figure(experiment, outcome, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def random_walk(outcome) -> None:
    """Few steps and few neurons, so a wide margin."""
    for row in outcome.rows:
        for what in ("norm", "rotation"):
            ratio = row[f"{what} / exact"]
            wide = 0.25 if row["optimizer"] == "adam_l2" else 0.08
            assert isinstance(ratio, Stat)
            assert abs(ratio.mean - 1) < wide, (row["optimizer"], what, ratio)
    spread = {row["optimizer"]: row["spread of rotation"].mean for row in outcome.rows}
    assert spread["adam_l2"] > 1.5 * spread["adamw"]


def norms(outcome) -> None:
    """On the walk theory holds, and the note where there is no momentum."""
    rows = {(r["system"], r["optimizer"], r["decay"]): r for r in outcome.rows}
    assert len(rows) == 12
    for (system, optimizer, decay), row in rows.items():
        if system != "walk":
            continue
        for what in ("norm", "effective lr"):
            assert abs(row[f"{what} / theory"].mean - 1) < 0.08, (optimizer, decay, what)
            if optimizer == "ngd":
                assert abs(row[f"{what} / note"].mean - 1) < 0.01, (decay, what)
        if optimizer != "adamw":  # its v remembers 1000 steps, more than there are: the slope is not there yet
            expected = -0.5 if decay == "no" else 0.0
            assert abs(row["slope of effective lr"].mean - expected) < 0.1, (optimizer, decay)


def adam_vs_adamw(outcome) -> None:
    """The variants rotate evenly, the others do not."""
    rows = {row["optimizer"]: row for row in outcome.rows}
    assert len(rows) == 4
    for name in ("rotational_adamw", "rotational_adam_l2"):
        for what in ("layers", "neurons"):
            spread = {key: row[f"spread over {what}"].mean for key, row in rows.items()}
            assert spread[name] < 0.05 < min(spread["adamw"], spread["adam_l2"])


def lr_vs_wd(outcome) -> None:
    """AdamW begins too slowly at a low lr and too fast at a high one; its variant rotates as asked at any."""
    early: dict = {}
    settled = {c.name: c.measured.mean for c in outcome.claims if c.statement == "settled"}
    assert settled.keys() == {"settled/lr-0.003", "settled/lr-0.03", "settled/product", "settled/theory"}
    for name in ("settled/lr-0.003", "settled/lr-0.03"):
        assert settled[name] == pytest.approx(1, abs=0.15)
    assert settled["settled/product"] > 1.5
    for row in outcome.rows:
        if row["optimizer"] == "adamw":
            early.setdefault(row["task"], []).append(row["early rotation / settled"].mean)
        elif row["optimizer"] == "rotational_adamw":
            assert abs(row["early rotation / settled"].mean - 1) < 0.03
            assert abs(row["last norm / initial"].mean - 1) < 1e-3
    for found in early.values():
        assert found == sorted(found)
        assert found[0] < 1 < found[-1]


def poor_normalisation(outcome) -> None:
    """The variant rotates neurons evenly, whatever the normalisation."""
    spread = {(r["data"], r["norm"], r["lr"], r["optimizer"]): r["spread over neurons"].mean for r in outcome.rows}
    for (*where, optimizer), value in spread.items():
        if optimizer == "rotational_sgdm":
            assert value < 0.6 * spread[*where, "sgdm"]
    for row in outcome.rows:
        if row["optimizer"] == "rotational_sgdm" and row["data"] == "classification":
            assert row["rotation / theory"].mean == pytest.approx(1, abs=0.1), "it rotates as it is asked to"


def constrain(outcome) -> None:
    """With one seed a claim's number is the quotient of two in the table."""
    assert [row["task"] for row in outcome.rows] == ["vision", "text", "pairs"]
    claims = {claim.name: claim for claim in outcome.claims}
    for row in outcome.rows:
        for kind in ("zero", "best"):
            measured = claims[f"{kind}-shot-{row['task']}/{row['optimizer']}"].measured.mean
            assert measured == pytest.approx(row[f"{kind} shot"].mean / row["baseline"].mean)


def assumptions(outcome) -> None:
    """Batch normalisation makes kernels scale-invariant, whatever the seed; a GPT's layers are not."""
    rows = {row["model"]: row for row in outcome.rows}
    assert abs(rows["resnet"]["cos(g, w)"].mean) < 1e-4
    assert abs(rows["gpt"]["cos(g, w)"].mean) > 1e-3
    assert abs(rows["resnet"]["λ_u / λ"].mean) < 0.2 < abs(rows["gpt"]["λ_u / λ"].mean)


def warmup(outcome) -> None:
    """Variants begin at the equilibrium's rotation; AdamW far above it, and warmup slows it."""
    first = {(r["optimizer"], r["warmup"] > 0): r["first rotation / equilibrium's"].mean for r in outcome.rows}
    for kind in ("adamw", "sgdm"):
        assert abs(first[f"rotational_{kind}", False] - 1) < 0.03
        assert first[f"rotational_{kind}", True] < 0.8
    assert first["adamw", False] > 1.5 * first["adamw", True] > 3


def imbalance(outcome) -> None:
    """All settings are there, the balanced one first."""
    assert [(r["width"], r["p"], r["f"]) for r in outcome.rows] == [(4, 0.0, 1.0), (4, 0.5, 10.0), (2, 0.0, 1.0)]
    slowed = {f"costs/{metric}-0.5-10" for metric in ("test_accuracy", "test_loss", "train_loss")}
    assert {c.name for c in outcome.claims} == slowed | {"half-the-width"}


def scale_sensitive(outcome) -> None:
    """Normalised layers have no radial gradient, others have."""
    largest = {row["network"]: row["largest |λ_u / λ|"].mean for row in outcome.rows}
    assert max(largest["standardised"], largest["batch norm"]) < 1e-3 < largest["plain"] / 10


def sensitivity(outcome) -> None:
    """The default comes first on each network, and every other case is held against it."""
    for model in ("resnet", "gpt"):
        own = [row for row in outcome.rows if row["model"] == model]
        assert own[0]["/ default"].mean == 1.0
        for row in own:
            assert row["/ default"].mean == pytest.approx(row["value"].mean / own[0]["value"].mean)
        assert len({(r["track"], r["centred"], r["by"], r["Algorithm 1"]) for r in own}) == len(own) == 6
        values = [row["value"].mean for row in own]
        assert len(set(values)) >= 3, "the options reach the optimizer"
    assert len(outcome.claims) == 10


def betas(outcome) -> None:
    """Walks are where theory says; without β1 a network rotates faster; the options reach the optimizer."""
    for claim in outcome.claims:
        if claim.statement == "walk":
            assert abs(claim.measured.mean - 1) < 0.06, claim
    assert {c.statement for c in outcome.claims} == set(find("betas").statements)
    own = [row for row in outcome.rows if row["case"] == "same lr" and row["task"] == "vision"]
    turned = {row["betas"]: row["rotation / default's"].mean for row in own}
    assert turned["(0.0, 0.99)"] > turned["(0.5, 0.99)"] > max(1, turned["(0.98, 0.99)"])
    values = [row["value"].mean for row in outcome.rows if row["task"] == "text"]
    assert len(set(values)) == len(values) == 8
    settled = {c.name: c.measured.mean / c.expected for c in outcome.claims if c.statement == "network"}
    assert len(settled) == 5
    assert max(abs(ratio - 1) for ratio in settled.values()) < 0.3
    noisy = {
        (row["case"], row["betas"]): row["rotation / default's"].mean for row in outcome.rows if row["task"] == "noisy"
    }
    for first in ("0.0", "0.5", "0.98"):
        assert noisy["same rotation", f"({first}, 0.99)"] == pytest.approx(1, abs=0.1), "as it says"
    assert noisy["same lr", "(0.0, 0.99)"] > 3 > 1 / 3 > noisy["same lr", "(0.98, 0.99)"] - 0.2


def nested_adam(outcome) -> None:
    """A short second average makes the nested walk's norm smaller, as theory says; its first updates are known."""
    claims = {claim.name: claim for claim in outcome.claims}
    assert {c.statement for c in outcome.claims} == set(find("nested-adam").statements)
    norm = claims["walk-short/norm-0.9-0.5"]
    assert norm.expected == pytest.approx(0.763, abs=0.01)
    assert norm.measured.mean == pytest.approx(norm.expected, rel=0.06)
    assert claims["same-bias-term-walk"].measured.mean == pytest.approx(1, abs=0.06)


def bias_correction(outcome) -> None:
    """Without correction but with its schedules it is torch's AdamW; first steps are [notepad]'s."""
    claims = {claim.name: claim for claim in outcome.claims}
    assert {c.statement for c in outcome.claims} == set(find("bias-correction").statements)
    for row in outcome.rows:
        if row["averages"] == "no BC, ρ(t)":
            assert row["distance to torch's"].mean < 1e-3
        elif row["averages"] == "ZI, no BC":
            assert row["distance to torch's"].mean > 0.1
    for part, expected in (("ZI-no-BC", 0.05**0.5), ("no-ZI-BC", 0.05**-0.5)):
        measured = claims[f"first-step/vision-constant-0.95-0.95-{part}"].measured.mean
        assert measured == pytest.approx(expected, rel=0.02)


def epsilon(outcome) -> None:
    """With a huge ε Adam is SGD; in a few steps ε = 1e-2 matters more than 1e-12."""
    claims = {claim.name: claim for claim in outcome.claims}
    assert {c.statement for c in outcome.claims} == set(find("epsilon").statements)
    for kind in ("vision", "text"):
        assert claims[f"large-is-sgd/{kind}"].measured.mean < 1e-3
        own = {(r["ε"], r["value of ε"], r["lr"]): r["worse than 1e-8"].mean for r in outcome.rows if r["task"] == kind}
        lr = 3e-3 if kind == "vision" else 4e-3
        assert abs(own["fixed", 1e-12, lr]) < abs(own["fixed", 1e-2, lr])
        if kind == "text":  # accuracy comes in steps, and may be the same by chance
            assert own["by layer", 1.0, lr] != own["by model", 1.0, lr]
            assert own["falling", 1e-2, lr] != own["rising", 1e-8, lr]


def switch(outcome) -> None:
    """Eight switches, each unlike the others and unlike its parts alone."""
    assert {c.statement for c in outcome.claims} == set(find("switch").statements)
    for kind in ("vision", "text"):
        losses = [row["train loss"].mean for row in outcome.rows if row["task"] == kind]
        assert len(set(losses)) == len(losses) == 6


def convex(outcome) -> None:
    """Every setting has all three, some of the loss is left, and less at no setting than there can be."""
    assert len(outcome.rows) == 2 * 3 * 3
    first = {(r["batch"], r["condition"], r["optimizer"]): r["rank of the gradient, first"].mean for r in outcome.rows}
    for row in outcome.rows:
        assert -9 <= row["log10 left"].mean < 0.5
        assert 1 <= row["late"].mean <= 4
        assert first["full", 30.0, row["optimizer"]] < first["full", 1.0, row["optimizer"]]
    assert first["full", 1.0, "sgdm"] == first["full", 1.0, "muon"], "the same weights at first"


def logistic_regression(outcome) -> None:
    """The gradient's rows sum to zero over classes, so that one singular value is none, of Muon's steps, too."""
    convex(outcome)
    claims = {claim.name: claim for claim in outcome.claims}
    for part in ("gradient", "step"):
        assert claims[f"classes/{part}"].measured.mean < 1e-3


def muon(outcome) -> None:
    """Polar factors are as accurate as asked, rotation is as asked, norms are kept."""
    rows = {(r["model"], r["Muon"]): r for r in outcome.rows}
    assert len(rows) == 14
    for model in ("gpt", "resnet"):
        assert 1 < rows[model, "lr"]["‖U‖₂ / lr"].mean < 1.2, "four steps: 20 % at most"
        assert rows[model, "accurate"]["‖U‖₂ / lr"].mean == pytest.approx(1, abs=2e-3)
        for name in ("rotational", "hyperball"):
            assert rows[model, name]["last norm / first"].mean == pytest.approx(1, abs=1e-4)
            assert rows[model, name]["rotation / forecast"].mean == pytest.approx(1, abs=0.05)
        assert rows[model, "independent"]["last norm / first"].mean < rows[model, "lr"]["last norm / first"].mean


def svd(outcome) -> None:
    """Muon's updates have more directions than AdamW's, gradients of a GPT few."""
    rows = {(r["model"], r["optimizer"]): r for r in outcome.rows}
    assert len(rows) == 4
    for model in ("resnet", "gpt"):
        share = {name: rows[model, name]["effective rank of update, share"].mean for name in ("adamw", "muon")}
        assert share["adamw"] < share["muon"] <= 1
    assert rows["gpt", "muon"]["stable rank of grad / random's"].mean < 0.5


def memory(outcome) -> None:
    """Strong decay and few steps: recall follows theory's contributions, and without decay it does not fall."""
    rows = {(r["system"], r["schedule"], r["wd"]): r for r in outcome.rows}
    assert len(rows) == 2 * 8 + 2 * 2
    for name in ("linear", "mlp"):
        last = {kind: rows[name, kind, 12.0]["share of last third"].mean for kind in ("constant", "cosine", "Eq. 16")}
        assert last["constant"] > 0.5 > last["Eq. 16"] > 0.2 > last["cosine"]
        assert rows[name, "curriculum", 12.0]["share of middle third"].mean > 0.45
        assert rows[name, "constant", 0.0]["share of last third"].mean == pytest.approx(1 / 3, abs=0.08)
    correlated = [c.measured.mean for c in outcome.claims if c.statement == "contribution"]
    assert len(correlated) == 8
    assert min(correlated) > 0.6
    rates = {c.name: c.measured.mean for c in outcome.claims if c.statement == "interference"}
    assert rates["interference/linear-12"] == pytest.approx(1, abs=0.25)


def schedules(outcome) -> None:
    """Every schedule is there on both tasks, each of the article's against four others and each other."""
    assert len(outcome.rows) == 14
    assert len(outcome.claims) == 2 * (2 * 4 + 2)
    own: dict = {}
    for name in ("vision", "text"):
        own = {row["schedule"]: row["test loss"].mean for row in outcome.rows if row["task"] == name}
        assert len(set(own.values())) == 7, "the schedules reach the optimizer"
    claims = {c.name: c.measured.mean for c in outcome.claims}
    assert claims["tied-text"] == pytest.approx(own["Eq. 17"] - own["Eq. 16"])


def transfer(outcome) -> None:
    """With a single setting in the sweep it is the tuned one, and rules move it as they say."""
    moved = {(r["change"], r["rule"]): (r["lr"], r["wd"]) for r in outcome.rows}
    assert moved["none", "tuned"] == (0.01, 0.5)
    assert moved["steps", "memory-steps"] == pytest.approx((0.01, 0.125))
    assert moved["batch", "epoch-timescale"] == pytest.approx((0.01, 2.0))
    assert moved["batch", "complete-p"] == pytest.approx((0.02, 1.0))
    assert moved["width", "width-product"] == pytest.approx((0.0025, 2.0))
    assert moved["width", "width-root"] == pytest.approx((0.0025, 1.0))
    betas = {r["rule"]: r["betas"] for r in outcome.rows if r["change"] == "batch"}
    assert betas["complete-p"] == "0.6, 0.996"
    for change in ("steps", "batch", "width"):
        assert min(r["regret"].mean for r in outcome.rows if r["change"] == change) == 0.0
    losses = [r["test loss"].mean for r in outcome.rows if r["rule"] != "best trained"]
    assert len(set(losses)) == len(losses) - 3, "memory-steps and epoch-timescale agree, of batches power-lines too"


CHECKS = {
    "adam-vs-adamw": adam_vs_adamw,
    "assumptions": assumptions,
    "betas": betas,
    "bias-correction": bias_correction,
    "constrain": constrain,
    "epsilon": epsilon,
    "imbalance": imbalance,
    "linear-regression": convex,
    "logistic-regression": logistic_regression,
    "lr-vs-wd": lr_vs_wd,
    "nested-adam": nested_adam,
    "muon": muon,
    "memory": memory,
    "norms": norms,
    "poor-normalisation": poor_normalisation,
    "random-walk": random_walk,
    "scale-sensitive": scale_sensitive,
    "schedules": schedules,
    "sensitivity": sensitivity,
    "switch": switch,
    "svd": svd,
    "transfer": transfer,
    "warmup": warmup,
}


OWN = '''
"""One's own."""
from equipoise.lab.train.trial import Trial
from equipoise.lab.experiments import Experiment, Outcome
from equipoise.lab.report.claims import over_seeds


class Own(Experiment):
    """Widths."""

    name, source, about = "own", "me", "Does width help?"

    def trials(self, preset):
        base = Trial(lr=3e-3, steps=20)
        good = [base.vary({"model_options.width": w, "seed": s}) for w in (8, 32) for s in range(2)]
        return [base.vary({"model_options.depth": -1}), *good, base.vary({"optimizer": "sgdm", "lr": 1e30})]

    def analyse(self, done):
        return Outcome(over_seeds([d.result for d in done], ["test_accuracy"], by=["optimizer", "model_options.width"]))

    def draw(self, outcome, figure):
        figure.subplots().plot([row["test_accuracy"].mean for row in outcome.rows])
'''


def test_ones_own_is_a_file_and_a_failed_trial_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    outcome, done = run_experiment(find(str(tmp_path / "own.py")), tmp_path / "out", preset="smoke")
    assert [d.result.status for d in done] == ["failed", *["finished"] * 4, "diverged"]
    assert "depth = -1: must be a whole number" in done[0].result.error
    ends = {
        (r["optimizer"], r["model_options.width"]): (r["finished"], r["diverged"], r["failed"]) for r in outcome.rows
    }
    assert ends == {
        ("adamw", None): (0, 0, 1), ("adamw", 8): (2, 0, 0), ("adamw", 32): (2, 0, 0), ("sgdm", None): (0, 1, 0),
    }  # fmt: skip
    again = [0]

    def report(number: int, count: int, trial: Trial, step: int) -> None:
        again.append(step if 0 < step < trial.steps else 0)

    run_experiment(find(str(tmp_path / "own.py")), tmp_path / "out", preset="smoke", report=report)
    assert max(again) == 0, "nothing was trained again"
    (tmp_path / "none.py").write_text("x = 1")
    with pytest.raises(ValueError, match="must have one class of Experiment, not 0"):
        find(str(tmp_path / "none.py"))


def test_the_radial_part_of_a_walk_is_momentums_own(tmp_path: Path) -> None:
    """In a random walk [kosson2024]'s λ_u is 0; updates have −2λβ₁/(1 + β₁), by the gradients that are in w already."""
    trial = Trial(
        data="noise", model="walk", lr=0.02, weight_decay=0.5, steps=800, data_options={"inputs": 64, "outputs": 64},
        model_options={"gammas": "ones"}, optimizer_options={"betas": (0.9, 0.999)}, watch={"every": 4, "spectra": 0},
    )  # fmt: skip
    result = train(trial, tmp_path)
    assert result.status == "finished"
    with Run.open(tmp_path / RUN) as run:
        of = {q: run.series(q, "linear.weight", start=400).values for q in ("radial_decay", "relative_update")}
    found = radial(of["radial_decay"], of["relative_update"], trial.lr, trial.weight_decay)
    assert of["radial_decay"].mean() / trial.weight_decay == pytest.approx(-2 * 0.9 / 1.9, abs=0.1)
    assert found.mean() / trial.weight_decay == pytest.approx(0, abs=0.03)


def test_some_neurons_are_slowed() -> None:
    options = {"portion": 0.25, "factor": 0.1}
    trial = Trial(optimizer="imbalanced_adamw", lr=0.1, weight_decay=0.1, optimizer_options=options)
    data = load("digits")
    model = models.make("mlp", data, 0, width=64)
    optimizer, _ = optimizers.make(trial, model)
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    task.loss("classes", model, *data.train.batches(32, 0)(1)).backward()
    optimizer.step()
    expected = stationary("adamw", lr=0.1, weight_decay=0.1, size=64).rotation
    turned = {}
    for name, p in model.named_parameters():
        cos = torch.cosine_similarity(before[name], p.detach().double(), dim=-1)
        turned[name] = cos.clamp(-1, 1).arccos() / expected
    slow = {name: turned[name] < 0.5 for name in ("body.1.weight", "body.4.weight")}
    for name, which in slow.items():
        assert int(which.sum()) == 16
        assert turned[name][which].numpy() == pytest.approx(0.1, rel=0.05)
        assert turned[name][~which].numpy() == pytest.approx(1.0, rel=0.05)
    assert (slow["body.1.weight"] != slow["body.4.weight"]).any()
    assert turned["head.weight"].numpy() == pytest.approx(1.0, rel=0.05)


def test_the_optimum_of_a_regression() -> None:
    """Against the normal equations, and against gradient descent to where nothing moves."""
    data = load("regression", samples=80, inputs=4, outputs=3, tests=0).test
    assert data is not None
    X, Y = data.x.double(), data.y.double()
    W = torch.linalg.inv(X.T @ X) @ X.T @ Y
    assert LinearRegression.losses(X, data.y) == pytest.approx((float((Y**2).mean()), float(((X @ W - Y) ** 2).mean())))
    data = load("classification", samples=80, inputs=4, outputs=3, noise=0.5, tests=0).test
    assert data is not None
    X, W = data.x.double(), torch.zeros(5, 3, dtype=torch.float64)
    one_hot = torch.nn.functional.one_hot(data.y, 3).double()
    for _ in range(4000):
        W -= X.T @ (torch.softmax(X @ W, 1) - one_hot) / len(X)
    least = float(-(one_hot * torch.log_softmax(X @ W, 1)).sum() / len(X))
    assert LogisticRegression.losses(X, data.y) == pytest.approx((float(np.log(3)), least), rel=1e-9)


def test_statistics_by_hand() -> None:
    trial = Trial()
    results = [Result(trial.vary({"seed": i}), "finished", metrics={"test_loss": x}) for i, x in enumerate((1, 2, 4))]
    results.append(Result(trial.vary({"seed": 3}), "diverged"))
    (row,) = over_seeds(results, ["test_loss"], by=["lr"])
    assert (row["finished"], row["diverged"]) == (3, 1)
    assert row["test_loss"].mean == pytest.approx(7 / 3)
    assert row["test_loss"].std == pytest.approx((((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2) ** 0.5)

    def verdict(mean: float, std: float, relation: str = "about", count: int = 3) -> str:
        return Claim("n", "s", "q", 1.0, Stat(mean, std, count), relation, 0.1).verdict

    # Three seeds: the interval is t₂(0.9975)·std/√3 = 19.96·std/√3 = 11.53·std to each side.
    assert verdict(1.05, 0.0043) == "agrees"
    assert verdict(1.05, 0.0044) == "undecided"
    assert verdict(1.2, 0.008) == "differs"
    assert verdict(1.2, 0.01, "above") == "agrees"
    assert verdict(1.2, 0.01, "below") == "differs"
    assert verdict(1.0, float("nan"), count=1) == "undecided"
