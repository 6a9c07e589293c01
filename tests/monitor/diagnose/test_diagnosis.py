"""Planted faults are named at the right layer, healthy runs raise nothing, and each check can see what it is for."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
from torch import nn
from workloads import FAMILIES, OPTIMIZERS, PARTS, Workload, healthy, outcome, trial_of

import equipoise as eq
from equipoise.finding import Finding

FAULTS = [case for part in PARTS for case in planted.cases(part) if (case[0], str(case[1])) not in planted.HARMLESS]
HEALTHY = [workload for part in PARTS for workload in healthy(part)]


def _quick() -> tuple[list[tuple[str, Workload]], list[Workload]]:
    """One workload for each fault, an MLP where there is one, and a healthy one for each family."""
    faults = [[case for case in FAULTS if case[0] == fault and case[1].part == "chosen"] for fault in planted.FAULTS]
    well = [Workload(family, OPTIMIZERS[k % len(OPTIMIZERS)], "chosen") for k, family in enumerate(FAMILIES)]
    return [min(some, key=lambda case: case[1].family != "mlp") for some in faults], well


QUICK = _quick()


@pytest.mark.parametrize(
    ("fault", "workload"),
    [
        pytest.param(*case, marks=() if case in QUICK[0] else pytest.mark.evidence, id=f"{case[0]}, {case[1]}")
        for case in FAULTS
    ],
)
def test_planted_faults_are_named(fault: str, workload: Workload, tmp_path: Path) -> None:
    trial, found = planted.planted(fault, workload, tmp_path)
    assert any(planted.names(f, fault, trial) for f in found.findings), found.findings


@pytest.mark.parametrize(
    "workload",
    [pytest.param(one, marks=() if one in QUICK[1] else pytest.mark.evidence, id=f"healthy {one}") for one in HEALTHY],
)
def test_healthy_runs_raise_no_alarm(workload: Workload, tmp_path: Path) -> None:
    assert outcome(*trial_of(workload), tmp_path).alarms == []


# One check at a time


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))


def run(
    path: Path,
    model: nn.Module,
    optimizer: Any,
    steps: int = 60,
    before: Callable[[int], None] = lambda step: None,
    **watch: Any,
) -> dict[str, Finding]:
    """Train on noise; the findings by code."""
    with eq.watch(model, optimizer, path, **({"every": 1, "spectra": 0, "strict": True} | watch)):
        for step in range(1, steps + 1):
            before(step)
            optimizer.zero_grad()
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            optimizer.step()
    with eq.Run.open(path) as stored:
        return {f.code: f for f in stored.diagnose()}


def test_nothing_is_found_in_a_plain_run(tmp_path: Path) -> None:
    model = net()
    assert run(tmp_path, model, torch.optim.AdamW(eq.param_groups(model), 3e-3, weight_decay=1.0)) == {}


def test_decay_in_the_wrong_places(tmp_path: Path) -> None:
    model = net()
    found = run(tmp_path / "a", model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1))
    assert found["decay-on-gains"].where == "0.bias"
    model = net()
    found = run(tmp_path / "c", model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0))
    assert found["no-decay"].severity == "info"


def test_parameters_that_were_forgotten(tmp_path: Path) -> None:
    model = net()
    groups = [{"params": [model[0].weight, model[3].weight]}]
    found = run(tmp_path, model, torch.optim.AdamW(groups, 1e-3, weight_decay=0.1))["layer-frozen"]
    assert (found.where, found.severity) == ("0.bias", "warning")
    assert "does not have it" in found.evidence
    assert "and 2 more" in found.evidence


def test_lr_of_zero_and_no_gradient(tmp_path: Path) -> None:
    model = net()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices[:2]}, {"params": matrices[2:], "lr": 0.0}, {"params": rest, "weight_decay": 0.0}]
    found = run(tmp_path, model, torch.optim.AdamW(groups, 1e-3, weight_decay=0.1))["layer-frozen"]
    assert found.where == "5.weight"
    assert "lr is 0" in found.evidence


def test_a_dead_layer(tmp_path: Path) -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("3.bias").fill_(-100.0)  # no ReLU after it lets anything through
    found = run(tmp_path, model, torch.optim.SGD(eq.param_groups(model), 1e-3))
    assert found["layer-dead"].where == "0.weight"
    assert "other tensors" in found["layer-dead"].evidence


def test_dead_neurons_are_counted(tmp_path: Path) -> None:
    """Of 24 neurons 7 get nothing through their ReLU, and others a sample now and then."""
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    with torch.no_grad():
        model.get_parameter("0.bias")[:7] = -100.0
    found = run(tmp_path / "a", model, torch.optim.SGD(model.parameters(), 1e-3))["neurons-dead"]
    assert found.where == "0.weight"
    assert "7 of its 24 neurons (29%)" in found.evidence
    with eq.Run.open(tmp_path / "a") as stored:
        assert stored.series("dead", "0.weight").values[-1] == pytest.approx(7 / 24)

    def now_and_then(step: int) -> None:
        with torch.no_grad():
            model.get_parameter("0.bias")[:7] = 0.0 if step % 10 == 5 else -100.0

    silent = run(tmp_path / "b", model, torch.optim.SGD(model.parameters(), 1e-3), before=now_and_then)
    assert "neurons-dead" not in silent


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.AdamW])
def test_gradients_that_are_always_clipped(rule: Any, tmp_path: Path) -> None:
    model = net()
    optimizer = rule(model.parameters(), 1e-3)

    def clipped(norm: float, path: Path) -> dict[str, Finding]:
        with eq.watch(model, optimizer, path, strict=True):
            for _ in range(60):
                optimizer.zero_grad()
                (model(torch.randn(16, 12)) - 1).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
        with eq.Run.open(path) as stored:
            return {f.code: f for f in stored.diagnose()}

    found = clipped(1e-3, tmp_path / "a")["gradient-clipped"]
    assert found.severity == "info", "Adam loses nothing by it"
    assert "0.001 at 100% of the measured steps" in found.evidence
    assert "gradient-clipped" not in clipped(100.0, tmp_path / "b")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_that_nobody_sets_to_zero(momentum: float, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-5, momentum)
    with eq.watch(model, optimizer, tmp_path, strict=True) as watch:
        for _ in range(60):
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            optimizer.step()
    (found,) = (f for f in watch.findings if f.code == "gradients-accumulate")
    assert "zero_grad" in found.advice
    healthy = run(tmp_path / "b", model, torch.optim.SGD(model.parameters(), 1e-5, momentum))
    assert "gradients-accumulate" not in healthy, "though the same batch statistics come at every step"


def test_weights_that_stay_where_they_are(tmp_path: Path) -> None:
    def trained(path: Path, lr: float, curve: Callable[[int], float], log: bool) -> dict[str, Finding]:
        model = net()
        optimizer = torch.optim.AdamW(eq.param_groups(model), lr, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, curve)
        with eq.watch(model, optimizer, path, strict=True) as watch:
            for _ in range(150):
                optimizer.zero_grad()
                loss = (model(torch.randn(16, 12)) - 1).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                if log:
                    watch.log(loss=loss)
        with eq.Run.open(path) as stored:
            return {f.code: f for f in stored.diagnose()}

    constant: Callable[[int], float] = lambda t: 1.0  # noqa: E731
    found = trained(tmp_path / "a", 1e-7, constant, log=True)["weights-hardly-move"]
    assert found.severity == "warning"
    assert "lr 1e-07" in found.evidence
    assert trained(tmp_path / "b", 1e-7, constant, log=False)["weights-hardly-move"].severity == "info"
    assert "weights-hardly-move" not in trained(tmp_path / "c", 3e-3, constant, log=True)
    warming = trained(tmp_path / "d", 1e-3, lambda t: (t + 1) / 1e6, log=True)
    assert "weights-hardly-move" not in warming, "lr still rises"


def test_a_layer_with_an_lr_of_its_own(tmp_path: Path) -> None:
    model = net()
    groups = eq.param_groups(model, overrides={"3.weight": {"lr": 0.1}})
    found = run(tmp_path, model, torch.optim.AdamW(groups, 1e-3, weight_decay=0.1))["layers-unbalanced"]
    assert (found.where, found.severity) == ("3.weight", "info")
    assert "its group's lr is 100× that of most layers" in found.evidence


def test_layers_of_another_optimizer_are_not_compared(tmp_path: Path) -> None:
    """Muon turns what it trains much faster than the AdamW beside it, whose lr is another thing."""
    torch.manual_seed(0)
    layers = [nn.Linear(24, 24, bias=False) for _ in range(4)]
    model = nn.Sequential(nn.Linear(12, 24, bias=False), *layers, nn.Linear(24, 4, bias=False))
    inner = [layer.weight for layer in layers]
    rest = [model.get_parameter("0.weight"), model.get_parameter("5.weight")]
    optimizers = [eq.Muon(inner, 0.05, weight_decay=0.1), torch.optim.AdamW(rest, 1e-5, weight_decay=0.1)]
    with eq.watch(model, optimizers, tmp_path, strict=True):
        for _ in range(60):
            for one in optimizers:
                one.zero_grad()
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            for one in optimizers:
                one.step()
    with eq.Run.open(tmp_path) as stored:
        turned = {n: stored.series("rotation", n).values[-5:].mean() for n in ("1.weight", "5.weight")}
        assert turned["1.weight"] > 20 * turned["5.weight"]
        assert "layers-unbalanced" not in {f.code for f in stored.diagnose()}


def test_first_steps_that_overwrite_the_weights(tmp_path: Path) -> None:
    model = net()
    found = run(tmp_path / "a", model, torch.optim.AdamW(eq.param_groups(model), 0.2, weight_decay=0.01))
    assert found["transient-too-fast"].severity == "info"
    model = net()
    usual = run(tmp_path / "b", model, torch.optim.AdamW(eq.param_groups(model), 3e-3, weight_decay=0.01))
    assert "transient-too-fast" not in usual, "though its equilibrium turns much more slowly"


def test_decay_that_forgets_within_a_few_steps(tmp_path: Path) -> None:
    model = net()
    found = run(tmp_path / "a", model, torch.optim.AdamW(eq.param_groups(model), 1e-2, weight_decay=5.0), steps=80)
    assert found["timescale-short"].severity == "warning"
    model = net()
    groups = eq.param_groups(model, overrides={"3.weight": {"weight_decay": 5.0}})
    found = run(tmp_path / "b", model, torch.optim.AdamW(groups, 1e-2, weight_decay=0.1))
    assert found.get("timescale-short") is None or found["timescale-short"].severity == "info", "one layer of three"


def test_a_momentum_that_is_nan_though_weights_are_not(tmp_path: Path) -> None:
    """The sign of NaN is 0: Lion leaves such a weight as it is for ever."""
    model = net()
    optimizer = eq.Lion(eq.param_groups(model), 1e-4, weight_decay=0.1)
    with eq.watch(model, optimizer, tmp_path, every=7, strict=True, diagnose=False):
        for step in range(1, 61):
            optimizer.zero_grad()
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            if step == 30:
                grad = model.get_parameter("3.weight").grad
                assert grad is not None
                grad[0, 0] = math.nan
            optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    with eq.Run.open(tmp_path) as stored:
        (found,) = (f for f in stored.diagnose() if f.code == "not-finite")
    assert found.where == "3.weight"
    assert "the momentum is NaN" in found.evidence


def test_l2_so_strong_that_nothing_settles(tmp_path: Path) -> None:
    """There is no equilibrium to compare with; all other checks say what they have to say."""
    model = net()
    found = run(tmp_path, model, torch.optim.Adam(model.parameters(), 0.3, weight_decay=1.0), steps=100)
    assert {"adam-l2", "decay-on-gains"} <= found.keys()
    assert "watch-failed" not in found


def test_a_leap_of_lr(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 1e-4, weight_decay=0.1)

    def leap(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 if step < 30 else 2e-3

    found = run(tmp_path / "up", model, optimizer, before=leap, every=7)["lr-leap"]
    assert found.severity == "info"
    assert "from 0.0001 to 0.002 at step 30" in found.evidence, "though step 30 is not measured"
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, total_iters=60)
    found = run(tmp_path / "warm", model, optimizer, before=lambda step: schedule.step() if step > 1 else None)
    assert "lr-leap" not in found, "a warmup from a thousandth leaps at its second step, far below the peak"


def test_epsilon(tmp_path: Path) -> None:
    model = net()
    found = run(tmp_path, model, torch.optim.AdamW(eq.param_groups(model), 1e-3, eps=1.0, weight_decay=0.1))
    assert found["eps-dominated"].severity == "warning"
    grad = model.get_parameter("0.weight").grad
    assert grad is not None
    assert grad.square().mean().sqrt() < 0.1, "a tenth of ε"


def test_muon_far_from_orthogonal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 24, bias=False), nn.Tanh(), nn.Linear(24, 4, bias=False))
    healthy = run(tmp_path / "a", model, eq.Muon(model.parameters(), 1e-2, weight_decay=0.1), spectra=5)
    assert "muon-not-orthogonal" not in healthy
    bad = run(tmp_path / "b", model, torch.optim.Muon(model.parameters(), 1e-2, ns_steps=1), spectra=5)
    assert bad["muon-not-orthogonal"].severity == "info"


def test_memory_shorter_than_an_epoch(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 1e-2, weight_decay=10.0)
    found = run(tmp_path, model, optimizer, meta={"steps_per_epoch": 50})["timescale-short"]
    assert "10 steps, 0.2 epochs" in found.evidence


def test_falling_out_of_equilibrium(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 1e-2, weight_decay=2.0)
    curve = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, 10 ** (-(t - 250) / 20)))
    found = run(tmp_path, model, optimizer, 300, before=lambda step: curve.step() if step > 1 else None)
    assert found["leaves-equilibrium"].severity == "info"


def test_a_layer_that_explodes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 24, bias=False), nn.LayerNorm(24, elementwise_affine=False))
    found = run(tmp_path, model, torch.optim.AdamW(model.parameters(), 3.0, betas=(0.0, 0.999), weight_decay=0.3))
    assert found["layer-exploding"].severity == "error"
    assert found["layer-exploding"].where == "0.weight"


def test_weights_that_grow_from_a_small_start_do_not_explode(tmp_path: Path) -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("3.weight").mul_(0.01)
    start = model.get_parameter("3.weight").detach().norm().item()
    found = run(tmp_path, model, torch.optim.AdamW(eq.param_groups(model), 1e-2, weight_decay=0.1))
    assert model.get_parameter("3.weight").detach().norm().item() > 20 * start
    assert "layer-exploding" not in found


def test_decay_that_takes_the_whole_weight(tmp_path: Path) -> None:
    model = net()
    groups = eq.param_groups(model, overrides={"3.weight": {"lr": 1.0}})
    found = run(tmp_path, model, torch.optim.AdamW(groups, 3e-3, weight_decay=1.0))
    assert (found["decay-overshoot"].where, found["decay-overshoot"].severity) == ("3.weight", "error")
    assert "watch-failed" not in found
    with eq.Run.open(tmp_path) as stored:
        compared = stored.compare("3.weight")
        assert math.isnan(compared.plain.norm[-1]), "there is no equilibrium to compare with"
        assert math.isnan(compared.effects()["gap"])
        assert math.isfinite(stored.compare("0.weight").effects()["gap"])
    eq.board.report([tmp_path], tmp_path / "report.html")


def test_an_lr_that_ends_at_zero_is_no_leap(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 3e-3, weight_decay=1.0)

    def last(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 if step < 60 else 0.0

    assert "lr-leap" not in run(tmp_path, model, optimizer, before=last)


def test_scaled_gradients_that_overflow_are_no_fault(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(eq.param_groups(model), 1e-3, weight_decay=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with eq.watch(model, optimizer, tmp_path, every=1, spectra=0, strict=True):
        for step in range(40):
            optimizer.zero_grad()
            much = math.inf if step % 10 == 5 else 1.0
            scaler.scale(much * (model(torch.randn(16, 12)) - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    with eq.Run.open(tmp_path) as stored:
        assert stored.series("skipped").values.sum() == 4
        assert "not-finite" not in {f.code for f in stored.diagnose()}


def test_a_loss_that_is_nan_is_of_all_tensors(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(eq.param_groups(model), 1e-3)

    def spoil(step: int) -> None:
        if step == 30:
            with torch.no_grad():
                model.get_parameter("5.bias")[0] = math.nan

    found = run(tmp_path, model, optimizer, before=spoil)["not-finite"]
    assert found.where == "all tensors"
    assert "step 30" in found.evidence


# While training goes on


def test_findings_come_while_training_goes_on(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    with eq.watch(model, optimizer, tmp_path, every=1, overhead=1.0, strict=True) as watch:
        for _ in range(300):
            optimizer.zero_grad()
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            optimizer.step()
            if watch.findings:
                break
        assert [f.code for f in watch.findings] == ["decay-on-gains"]
    assert [f.code for f in watch.findings] == ["decay-on-gains"], "each is said once"
    with eq.Run.open(tmp_path) as stored:
        assert [f.code for f in stored.findings] == ["decay-on-gains"]
        assert len(stored.diagnose()) == 1


def test_diagnosis_can_be_left_out(tmp_path: Path) -> None:
    model = net()
    run(tmp_path, model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1), diagnose=False)
    with eq.Run.open(tmp_path) as stored:
        assert stored.findings == []


def test_runs_without_settings_have_no_forecast(tmp_path: Path) -> None:
    from equipoise.monitor import Column, Layout, RunWriter, TensorInfo

    layout = Layout((Column("norm", "w"), Column("rotation", "w")))
    with RunWriter(tmp_path, layouts=[layout], tensors=[TensorInfo("w", (4, 3))]) as writer:
        for step in range(1, 20):
            writer.append(step, [1.0, 0.1])
    with eq.Run.open(tmp_path) as stored:
        assert stored.diagnose() == []
        with pytest.raises(ValueError, match="does not say what its optimizer was"):
            stored.compare("w")
        with pytest.raises(ValueError, match="tensor = 'x': must be one of the run's 1 tensors, such as w"):
            stored.compare("x")
        with pytest.raises(ValueError, match="neuron = 2: must be a sampled neuron of w"):
            stored.compare("w", neuron=2)


def test_optimizers_unknown_to_theory_raise_nothing_from_a_forecast(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Rprop(model.parameters(), 1e-3)
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        for _ in range(60):
            optimizer.zero_grad()
            (model(torch.randn(16, 12)) - 1).square().mean().backward()
            optimizer.step()
    with eq.Run.open(tmp_path) as stored:
        assert not stored.compare("0.weight").known
        codes = {f.code for f in stored.diagnose()}
    assert "optimizer-unknown" in codes
    assert codes <= {"optimizer-unknown", "no-decay", "layers-unbalanced", "layer-exploding"}


class Rows(nn.Module):
    """One matrix with gradients made by hand: noise, times a size for each row, plus a part along the weights."""

    def __init__(self, sizes: torch.Tensor, along: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(len(sizes), 64))
        self.sizes, self.along = sizes, along

    def backward(self) -> None:
        w = self.weight.detach()
        across = torch.randn_like(w)
        across -= (across * w).sum(1, keepdim=True) * w / w.square().sum(1, keepdim=True)
        self.weight.grad = self.sizes[:, None] * across / w.norm(dim=1, keepdim=True) + self.along * w


def walk(
    path: Path, model: Rows, optimizer: Any, steps: int, before: Callable[[int], None] = lambda step: None
) -> set[str]:
    # Looks while it runs come when time allows: here the end is what counts.
    with eq.watch(model, optimizer, path, every=2, spectra=0, diagnose=False, strict=True):
        for step in range(steps):
            before(step)
            model.backward()
            optimizer.step()
    with eq.Run.open(path) as stored:
        return {f.code for f in stored.diagnose()}


def test_rows_of_unlike_gradients_are_unbalanced_where_epsilon_rules(tmp_path: Path) -> None:
    """AdamW turns rows alike whatever the size of their gradients, as long as that is above ε."""
    for eps, codes in ((1e-8, set()), (10.0, {"neurons-unbalanced", "eps-dominated"})):
        torch.manual_seed(0)
        model = Rows(torch.logspace(-3, 0, 24))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, eps=eps, weight_decay=0.7)
        assert walk(tmp_path / f"{eps}", model, optimizer, 400) == codes


def test_a_gradient_along_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Rows(torch.ones(24), along=20.0)
    assert "radial-gradient" in walk(
        tmp_path, model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.7), 400
    )


def test_a_norm_that_fades_away(tmp_path: Path) -> None:
    """SGD whose gradients vanish: nothing pushes out any more what decay takes."""
    torch.manual_seed(0)
    model = Rows(torch.ones(24))

    def vanish(step: int) -> None:
        model.sizes = torch.ones(24) * (1.0 if step < 250 else 1e-3)

    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=7e-3)
    assert "not-in-equilibrium" in walk(tmp_path, model, optimizer, 400, vanish)


def test_many_tensors_and_groups_are_read_together(tmp_path: Path) -> None:
    """What is read of a file does not depend on how many tensors and groups there are, as reading each takes all."""

    def statements(n: int) -> int:
        model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(n))
        optimizer = torch.optim.AdamW([{"params": [p], "lr": 1e-3} for p in model.parameters()], weight_decay=0.1)
        with eq.watch(model, optimizer, tmp_path / str(n), every=1, quiet=True) as watch:
            for step in range(12):
                for p in model.parameters():
                    p.grad = torch.full((4, 4), math.inf if step == 11 else 1.0)
                optimizer.step()
                watch.log(loss=1.0)
        said: list[str] = []
        with eq.Run.open(tmp_path / str(n)) as stored:
            stored._archive._db.set_trace_callback(said.append)
            assert "not-finite" in [f.code for f in stored.diagnose()]
        return len(said)

    assert statements(40) < statements(4) + 10
