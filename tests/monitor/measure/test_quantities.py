"""What watch measures, against the definitions written out by hand in float64."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.monitor.loops import loss_of, network, train, value, watched

import equipoise as eq
from equipoise import theory
from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.measure.blocks import BLOCK
from equipoise.monitor.measure.quantities import MemorySoFar, Quantiles, variation
from equipoise.monitor.measure.singular_values import gram, gram_singular_values, spectrum_summary

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias")
LR, WD = 0.01, 0.5

OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=WD),
    "Adam": lambda p: torch.optim.Adam(p, lr=LR, weight_decay=WD),
    "SGD": lambda p: torch.optim.SGD(p, lr=LR, weight_decay=WD, momentum=0.9),
    "eq.AdamW": lambda p: eq.AdamW(p, lr=LR, weight_decay=WD),
    "independent": lambda p: eq.AdamW(p, lr=LR, weight_decay=0.05, decay="independent"),
    "cautious": lambda p: eq.AdamW(p, lr=LR, weight_decay=WD, decay="cautious"),
    "RotationalAdamW": lambda p: eq.RotationalAdamW(p, lr=LR, weight_decay=WD),
    "Rotational": lambda p: eq.Rotational(torch.optim.AdamW(p, lr=LR, weight_decay=WD)),
}


class Account:
    """Weights, gradients, change and momentum of every step of a run, in float64."""

    def __init__(self, make: Any, steps: int) -> None:
        model = network(torch.float64)
        self.first = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.optimizer = make(model.parameters())
        train(model, self.optimizer, steps - 1)
        self.w = {n: p.detach().clone() for n, p in model.named_parameters()}
        state = getattr(self.optimizer, "inner", self.optimizer).state
        self.m = {
            n: (state[p].get("exp_avg", state[p].get("momentum_buffer"))).clone() for n, p in model.named_parameters()
        }
        train(model, self.optimizer, 1, first=steps - 1)
        self.g = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        self.change = {n: p.detach() - self.w[n] for n, p in model.named_parameters()}

    def lost(self, name: str, key: str) -> torch.Tensor:
        """The share of each weight that decay took, as each optimizer is defined."""
        w, change = self.w[name], self.change[name]
        if key in ("Adam", "SGD") or (key.startswith("Rotational") and w.ndim > 1):
            return torch.zeros_like(w)
        if key == "independent":
            return torch.full_like(w, 0.05)
        if key == "cautious":
            return torch.where(change * w < 0, LR * WD, 0.0).to(w)
        return torch.full_like(w, LR * WD)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    """2 atan2(‖â − b̂‖, ‖â + b̂‖), Kahan's form: another one than watch's."""
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.atan2(float((a - b).norm()), float((a + b).norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("key", OPTIMIZERS)
@pytest.mark.parametrize("neurons", [0, 2])
def test_values_are_those_of_the_definitions(key: str, dtype: torch.dtype, neurons: int, tmp_path: Path) -> None:
    steps = 5
    run, _ = watched(tmp_path, OPTIMIZERS[key], steps, dtype, neurons=neurons)
    account = Account(OPTIMIZERS[key], steps)
    loose = 2e-3 if dtype == torch.float32 else 1e-6  # float32 weights take another way; rows are stored in float32
    for name in NAMES:
        w, g, m, change = account.w[name], account.g[name], account.m[name], account.change[name]
        lost = account.lost(name, key)
        update = change + lost * w
        sgd = key == "SGD"
        expected = {
            "norm": (w + change).norm(),
            "change": change.norm(),
            "update": update.norm(),
            "decay": (lost * w).norm(),
            "rotation": angle(w, w + change),
            "radial_change": (change * w).sum() / w.norm(),
            "relative_update": update.norm() / w.norm(),
            "grad_norm": g.norm(),
            "grad_weight_cos": cosine(g, w),
            "grad_momentum_cos": cosine(g, m),
            "momentum_norm": m.norm(),
            "effective_lr": LR / (w.norm() ** 2 if sgd else w.norm()),
            "radial_decay": (g * w).sum() / w.norm() ** 2
            if key in ("SGD", "Adam")
            else -(update * w).sum() / LR / w.norm() ** 2,
            "budget_decay": ((w - lost * w).square() - w.square()).sum(),
            "budget_push": update.square().sum(),
            "budget_radial": 2 * (update * (w - lost * w)).sum(),
        }
        for quantity, right in expected.items():
            got, scale = value(run, quantity, name), float(abs(right))
            if "radial" in quantity or "cos" in quantity:  # differences of larger numbers
                scale = max(scale, float(change.norm()) if quantity == "radial_change" else 0.1 * scale + 1e-2)
            assert abs(got - float(right)) <= loose * scale + 1e-9, (quantity, name, got, float(right))
        total = sum(value(run, f"budget_{part}", name) for part in ("decay", "push", "radial"))
        measured = float((w + change).square().sum() - w.square().sum())
        assert total == pytest.approx(measured, rel=loose, abs=loose * float(change.norm() * w.norm()))
    whole = torch.cat([g.flatten() for g in account.g.values()]).norm()
    assert value(run, "total_grad_norm") == pytest.approx(float(whole), rel=loose)


def test_neurons_are_measured_one_by_one(tmp_path: Path) -> None:
    run, _ = watched(tmp_path, OPTIMIZERS["AdamW"], 3, torch.float64, neurons=3)
    account = Account(OPTIMIZERS["AdamW"], 3)
    w, change = account.w["0.weight"], account.change["0.weight"]
    turns = [angle(w[i], w[i] + change[i]) for i in range(10)]
    for share in (0.1, 0.5, 0.9):
        assert value(run, "rotation", "0.weight", quantile=share) == pytest.approx(np.quantile(turns, share), rel=1e-5)
        norms = (w + change).norm(dim=1).numpy()
        assert value(run, "norm", "0.weight", quantile=share) == pytest.approx(np.quantile(norms, share), rel=1e-5)
    followed = run.tensors["0.weight"].neurons
    assert followed == (1, 5, 8)
    for n in followed:
        assert value(run, "rotation", "0.weight", neuron=n) == pytest.approx(turns[n], rel=1e-5)
        far = angle(account.first["0.weight"][n], w[n] + change[n])
        assert value(run, "angle", "0.weight", neuron=n) == pytest.approx(far, rel=1e-5)
    others = [angle(r, r + c) for r, c in zip(account.w["3.weight"], account.change["3.weight"], strict=True)]
    both = np.array(turns + others)
    assert value(run, "balance_neurons") == pytest.approx(both.std() / both.mean(), rel=1e-5)
    rows = list(followed)
    whole = angle(account.first["0.weight"][rows], (w + change)[rows])
    assert value(run, "angle", "0.weight") == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("rows", [8, 64, 100])
@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_rotation_is_right_at_any_size(size: float, rows: int, tmp_path: Path) -> None:
    """A known turn of float32 weights: the truth is the angle between the stored weights, in float64.

    More than eight rows are measured as a whole, in one block and in two.
    """
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(rows, 4096))
    optimizer = torch.optim.SGD([p], lr=1.0)
    across = torch.randn(rows, 4096)
    across -= (across * p.detach()).sum(1, keepdim=True) / p.detach().square().sum(1, keepdim=True) * p.detach()
    p.grad = size * across * p.detach().norm(dim=1, keepdim=True) / across.norm(dim=1, keepdim=True)
    before = p.detach().double()
    with eq.watch(None, optimizer, tmp_path, every=1, strict=True, neurons=8 if rows == 8 else 0):
        optimizer.step()
    after = p.detach().double()
    with eq.Run.open(tmp_path) as run:
        name = "group 0, parameter 0"
        for n in range(8 if rows == 8 else 0):
            right = angle(before[n], after[n])
            assert value(run, "rotation", name, neuron=n) == pytest.approx(right, rel=1e-3)
        assert value(run, "rotation", name) == pytest.approx(angle(before.flatten(), after.flatten()), rel=1e-3)


def test_c_err_of_a_random_walk_is_one(tmp_path: Path) -> None:
    for key, make in {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.99)),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "lion": lambda p: eq.Lion(p, lr=1e-3),
    }.items():
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.randn(64, 256))
        optimizer = make([p])
        with eq.watch(None, optimizer, tmp_path / key, every=1, strict=True, neurons=0, spectra=0):
            for _ in range(300):
                p.grad = torch.randn(64, 256)
                optimizer.step()
        with eq.Run.open(tmp_path / key) as run:
            assert run.series("c_err", "group 0, parameter 0").values[-100:].mean() == pytest.approx(1.0, rel=0.02), key


@pytest.mark.parametrize(
    "key", ["adamw", "adamw .95", "sgd", "nesterov", "rmsprop", "eq.AdamW", "eq.AdamW without bias correction"]
)
def test_c_err_is_one_while_averages_are_young(key: str, tmp_path: Path) -> None:
    """On a random walk in float64 C_err = 1 at every step, from the first on."""
    make = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
        "adamw .95": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95)),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "nesterov": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9),
        "eq.AdamW": lambda p: eq.AdamW(p, lr=1e-3),
        "eq.AdamW without bias correction": lambda p: eq.AdamW(p, lr=1e-3, bias_correction=False),
    }[key]
    noise = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.randn(64, 512, generator=noise, dtype=torch.float64))
    optimizer = make([p])
    with eq.watch(None, optimizer, tmp_path, every=1, strict=True, neurons=0, spectra=0):
        for _ in range(1000 if key == "adamw" else 100):
            p.grad = torch.randn(64, 512, generator=noise, dtype=torch.float64)
            optimizer.step()
    with eq.Run.open(tmp_path) as run:
        found = dict(zip(*run.series("c_err", "group 0, parameter 0"), strict=True))
    for t in (1, 2, 5, 20, 1000 if key == "adamw" else 100):
        assert found[t] == pytest.approx(1.0, rel=0.03), t


def test_the_age_of_averages_is_read_off_the_optimizer(tmp_path: Path) -> None:
    """A watch that comes later, and a tensor whose gradients come later, are told by the state."""
    noise = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64, 256, generator=noise)) for _ in range(2)]
    optimizer = torch.optim.AdamW(params, lr=1e-3)

    def steps(count: int, of: list[Any]) -> None:
        for _ in range(count):
            for p in of:
                p.grad = torch.randn(64, 256, generator=noise)
            optimizer.step()

    steps(3, params[:1])
    with eq.watch(None, optimizer, tmp_path, every=1, strict=True):
        steps(3, params[:1])
        steps(3, params)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
        steps(2, params)
    with eq.Run.open(tmp_path) as run:
        for name in ("group 0, parameter 0", "group 0, parameter 1"):
            assert run.series("c_err", name).values[-5:] == pytest.approx(np.ones(5), rel=0.05), name


@pytest.mark.parametrize("neurons", [0, 2])
def test_large_and_odd_tensors_are_measured_whole(neurons: int, tmp_path: Path) -> None:
    """Blocks: one tensor over several, kernels in another memory order, tensors without a gradient, scalars."""
    torch.manual_seed(0)
    shapes = [(700, BLOCK // 256), (5, 4, 3, 3), (), (7,), (3, 2)]
    params = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    params[1].data = params[1].data.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(params, lr=0.1)
    for p in params[:-1]:
        p.grad = torch.randn_like(p)
    before = [p.detach().clone() for p in params]
    with eq.watch(None, optimizer, tmp_path, every=1, strict=True, neurons=neurons):
        optimizer.step()
    with eq.Run.open(tmp_path) as run:
        for i, (p, old) in enumerate(zip(params, before, strict=True)):
            name = f"group 0, parameter {i}"
            assert value(run, "norm", name) == pytest.approx(float(p.detach().norm()), rel=1e-5)
            assert value(run, "change", name) == pytest.approx(float((p.detach() - old).norm()), rel=1e-5)
            if p.grad is not None:
                assert value(run, "grad_norm", name) == pytest.approx(float(p.grad.norm()), rel=1e-5)
        assert len(run.series("grad_norm", "group 0, parameter 4")) == 0
        if neurons == 0:
            return
        top = value(run, "rotation", "group 0, parameter 0", quantile=0.9)
        turns = [angle(a.double(), b.double()) for a, b in zip(before[0], params[0].detach(), strict=True)]
        assert top == pytest.approx(np.quantile(turns, 0.9), rel=1e-4)


def test_spectra(tmp_path: Path) -> None:
    run, _ = watched(tmp_path, OPTIMIZERS["AdamW"], 3, torch.float64, spectra=1)
    account = Account(OPTIMIZERS["AdamW"], 3)
    w, change = account.w["0.weight"], account.change["0.weight"]
    update = change + LR * WD * w
    for key, matrix in (("weight", w + change), ("update", update)):
        sigma = torch.linalg.svdvals(matrix).numpy()
        p = sigma**2 / (sigma**2).sum()
        assert value(run, f"{key}_top", "0.weight") == pytest.approx(sigma[0], rel=1e-5)
        assert value(run, f"{key}_bottom", "0.weight") == pytest.approx(sigma[-1], rel=1e-4)
        assert value(run, f"{key}_stable_rank", "0.weight") == pytest.approx(1 / p[0], rel=1e-5)
        assert value(run, f"{key}_entropy", "0.weight") == pytest.approx(-(p * np.log(p)).sum() / np.log(10), rel=1e-5)
    assert len(run.series("weight_top", "0.bias")) == 0


def test_muon_updates_are_orthogonal_and_sgds_are_not(tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.randn(16, 32, generator=torch.Generator().manual_seed(0)))
    found = {}
    for key, optimizer in {"muon": torch.optim.Muon([p], lr=0.1), "sgd": torch.optim.SGD([p], lr=0.1)}.items():
        p.grad = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
        with eq.watch(None, optimizer, tmp_path / key, every=1, spectra=1, strict=True):
            optimizer.step()
        with eq.Run.open(tmp_path / key) as run:
            found[key] = value(run, "update_orthogonality", "group 0, parameter 0")
    assert found["muon"] < 0.4 < 0.6 < found["sgd"]


@pytest.mark.parametrize("scale", ["original", "adam", "spectral", "none"])
def test_c_err_knows_how_muon_scales_by_shape(scale: str, tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=noise)) for shape in ((64, 16), (16, 64))]
    made = {"eq": eq.Muon(params, scale=scale), "rotational": eq.RotationalMuon(params, lr=0.01, weight_decay=0.1)}
    for key, optimizer in made.items():
        with eq.watch(None, optimizer, tmp_path / key, every=1, strict=True):
            for p in params:
                p.grad = torch.randn(p.shape, generator=noise)
            optimizer.step()
        with eq.Run.open(tmp_path / key) as run:
            for name in run.tensors:
                if key == "eq":
                    assert value(run, "c_err", name) == pytest.approx(1.0, abs=0.15)
                else:
                    assert len(run.series("c_err", name)) == 0, "the move sets the length of the step"


def test_eps_share(tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.ones(4, 5))
    optimizer = torch.optim.AdamW([p], lr=0.1, eps=1e-3)
    p.grad = torch.full((4, 5), 1e-4)
    p.grad[0] = 1.0
    with eq.watch(None, optimizer, tmp_path, every=1, spectra=1, strict=True):
        optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert value(run, "eps_share", "group 0, parameter 0") == pytest.approx(0.75)


def test_singular_values_of_a_known_matrix() -> None:
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double())
    values = torch.tensor([3.0, 1.0, 1e-3, 1e-5]).double()
    matrix = (q[:, :4] * values) @ q[:4, :4]
    assert gram_singular_values(gram(matrix.T))[0] <= 3.0 + 1e-9
    exact = torch.linalg.svdvals(matrix).numpy()
    assert gram_singular_values(gram(matrix)) == pytest.approx(exact, abs=1e-7)
    assert spectrum_summary(np.array([2.0, 2.0])) == pytest.approx((2.0, 2.0, 2.0, 1.0))
    assert spectrum_summary(np.array([2.0, 0.0])) == pytest.approx((2.0, 0.0, 1.0, 0.0))


def test_memory_so_far_is_theorys() -> None:
    rng = np.random.default_rng(0)
    lr, wd = rng.uniform(0, 0.1, 50), rng.uniform(0, 2, 50)
    memory = MemorySoFar()
    for a, b in zip(lr, wd, strict=True):
        memory.step(a, a * b)
    right = theory.memory(lr=lr, weight_decay=wd)
    assert memory.effective_steps == pytest.approx(right.effective_steps)
    assert memory.init_share == pytest.approx(right.init_share)


def test_quantiles_are_numpys() -> None:
    values = np.random.default_rng(0).normal(size=30)
    counts, starts = [5, 9, 5, 1], [0, 5, 14, 20]
    got = Quantiles(starts, counts, (0.0, 0.3, 0.5, 1.0))(values)
    for line, start, count in zip(got, starts, counts, strict=True):
        assert line == pytest.approx(np.quantile(values[start : start + count], (0.0, 0.3, 0.5, 1.0)), rel=1e-5)
    assert variation(np.array([1.0, 3.0, np.nan])) == pytest.approx(0.5)


def simulated(cadence: Cadence, cost: float, step_time: float, last: int) -> list[int]:
    measured = []
    for step in range(1, last + 1):
        if cadence.due(step):
            measured.append(cadence.measures(step))
            cadence.watched_for(cost + (step == 1))  # the first loads code
            cadence.plan(step)
        cadence.trained_for(step_time * 100 if step % 1000 == 0 else step_time)  # pauses do not count
    return measured


@pytest.mark.parametrize(("cost", "step_time"), [(0.002, 0.01), (0.01, 0.1), (0.025, 0.05)])
def test_a_long_run_pays_what_it_was_asked_for(cost: float, step_time: float) -> None:
    cadence = Cadence(overhead=0.01)
    simulated(cadence, cost, step_time, 20_000)
    assert 0.005 <= cadence.share <= 0.01


@pytest.mark.parametrize("last", [75, 400, 1000, 20_000, 300_000])
@pytest.mark.parametrize("cost", [0.0003, 0.003, 0.03, 1.0], ids="cost {}".format)
def test_coverage_comes_first(cost: float, last: int) -> None:
    """Steps of 10 ms: however much measuring costs, and wherever the run ends, it is seen to near its end."""
    cadence = Cadence(overhead=0.01)
    measured = simulated(cadence, cost, 0.01, last)
    assert len(measured) >= (30 if last >= 400 else 20)
    gaps = np.diff([*measured, last])
    assert (gaps <= np.maximum(2, 1 + np.array(measured) / 6)).all()
    needed = 1 + 6 + 6 * np.log(last / 6)  # the fewest that cover it
    assert cadence.share <= 0.055 or len(measured) <= 1.2 * needed, "at most 5 %, but for coverage"
    if cost <= 0.003:
        assert last - measured[-1] <= max(6, last / 30), "the end is seen where 5 % pay for it"


def test_the_last_steps_are_measured_where_the_length_is_known() -> None:
    assert simulated(Cadence(steps=5000), 1.0, 0.001, 5000)[-2:] == [4999, 5000]
    every = Cadence(every=100, steps=250)
    assert [every.measures(s) for s in range(1, 251) if every.due(s)] == [1, 100, 200, 249, 250]


def test_with_a_closure_gradients_are_measured_after_it(tmp_path: Path) -> None:
    """With a closure the gradient comes inside the step: it is measured after, at the weights before."""
    model = network(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    before = model[0].weight.detach().clone()  # type: ignore[index]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, torch.float64)
        loss.backward()
        return loss

    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        optimizer.step(closure)
    g = model[0].weight.grad  # type: ignore[index]
    with eq.Run.open(tmp_path) as run:
        assert value(run, "grad_weight_cos", "0.weight") == pytest.approx(cosine(g, before), rel=1e-5)
        assert len(run.series("grad_momentum_cos", "0.weight")) == 0


def test_steps_that_are_counted_with_gaps_are_measured_all_the_same() -> None:
    """As by Lightning, which counts the steps of two optimizers."""
    cadence = Cadence(every=10, start=4)
    assert [cadence.measures(step) for step in range(5, 60, 2) if cadence.due(step)] == [5, 11, 21, 31, 41, 51]
    assert cadence.due(60) is cadence.due(60) is True, "asking changes nothing"


@pytest.mark.parametrize("scale", [1e19, 1e30])
def test_norms_whose_squares_leave_float32_are_finite(scale: float, tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 5, bias=False)
    with torch.no_grad():
        model.weight.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path / "a"):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 6) / scale).square().mean().backward()
            optimizer.step()
    with eq.Run.open(tmp_path / "a") as run:
        norms = run.series("norm", "weight").values
    assert norms[-1] == pytest.approx(float(model.weight.detach().double().norm()), rel=1e-5)
