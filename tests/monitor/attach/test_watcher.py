"""Watch attaches to any loop and optimizer, changes nothing, and survives what loops do."""

import copy
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import forked
from tests.monitor.loops import loss_of, network, train, value, watched
from torch import nn

import equipoise as eq
from equipoise.monitor.measure import frame
from equipoise.monitor.measure.frame import Frame


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)


class Both:
    """Muon for matrices, as its users have it; a torch optimizer over matrices alone."""

    def __new__(cls, params: Any) -> Any:
        return torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.01, weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "AdamW loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "eq.AdamW": lambda p: eq.AdamW(p, lr=0.01, weight_decay=0.1),
    "eq.RotationalAdamW": lambda p: eq.RotationalAdamW(p, lr=0.01, weight_decay=0.1),
    "eq.Rotational": lambda p: eq.Rotational(torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    "eq.Switch": lambda p: (lambda q: eq.Switch(torch.optim.AdamW(q), torch.optim.SGD(q, lr=0.01), at=2))(list(p)),
    "Muon": Both,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


def plain(state: Any) -> Any:
    """A state as nested lists, to compare bit by bit."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {str(k): plain(v) for k, v in state.items()}
    return [plain(v) for v in state] if isinstance(state, list | tuple) else repr(state)


@pytest.mark.parametrize("key", OPTIMIZERS)
@pytest.mark.parametrize("options", [{"every": 1, "spectra": 1}, {}], ids=["every step", "default"])
def test_nothing_changes_to_the_last_bit(key: str, options: dict[str, Any], tmp_path: Path) -> None:
    def run(watching: bool) -> Any:
        model = network()
        optimizer = OPTIMIZERS[key](model.parameters())
        watch = eq.watch(model, optimizer, tmp_path, strict=True, **options) if watching else None
        torch.manual_seed(1)
        for step in range(5):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            if key == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        count = len(optimizer.state)
        if watch is not None:
            watch.close()
            assert watch.findings == []
        return plain(model.state_dict()), plain(optimizer.state_dict()), count, torch.get_rng_state().tolist()

    assert run(False) == run(True)
    with eq.Run.open(tmp_path) as found:
        assert len(found.series("norm", "0.weight")) == 5
        assert (found.series("rotation", "0.weight").values > 0).all()


def test_losses_are_stored_for_every_step_without_waiting(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    losses = []
    with eq.watch(model, optimizer, tmp_path, every=3, strict=True) as watch:

        def after(step: int, loss: torch.Tensor) -> None:
            watch.log(loss=loss, twice=2.0 * step)
            losses.append(float(loss.detach()))

        train(model, optimizer, 7, after)
        assert watch.step == 7
        watch.log(accuracy=0.5)
    with eq.Run.open(tmp_path) as run:
        assert run.status == "finished"
        assert list(run.series("loss").steps) == list(range(1, 8))
        assert list(run.series("loss").values) == pytest.approx(losses)
        assert list(run.series("twice").values) == [2.0 * s for s in range(7)]
        assert list(run.series("accuracy").steps) == [7]
        assert list(run.series("norm", "0.weight").steps) == [1, 3, 6]


def test_a_loss_that_is_not_a_number_is_stored(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        train(model, optimizer, 1, lambda step, loss: watch.log(loss=math.nan))
    with eq.Run.open(tmp_path) as run:
        assert math.isnan(value(run, "loss"))


def test_hyperparameters_and_memory_of_each_group(tmp_path: Path) -> None:
    model = network()
    named = list(model.parameters())
    groups = [{"params": named[:2], "lr": 0.1, "weight_decay": 1.0}, {"params": named[2:]}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
    rates = [0.1, 0.2, 0.05]
    with eq.watch(model, optimizer, tmp_path, every=2, strict=True):
        for step, lr in enumerate(rates):
            optimizer.param_groups[0]["lr"] = lr
            train(model, optimizer, 1, first=step)
        train(model, optimizer, 1, first=3)
    right = eq.theory.memory(lr=[*rates, 0.05], weight_decay=1.0)
    with eq.Run.open(tmp_path) as run:
        assert value(run, "lr/0") == pytest.approx(0.05)
        assert value(run, "lr/1") == pytest.approx(0.01)
        assert value(run, "weight_decay/0") == 1.0
        assert value(run, "memory/0") == pytest.approx(right.effective_steps)
        assert value(run, "init_share/0") == pytest.approx(right.init_share)
        assert value(run, "memory/1") == pytest.approx(4.0)
        assert run.tensors["2.weight"].group == 1


def test_steps_between_measured_ones_are_all_counted(tmp_path: Path) -> None:
    """They are taken in many at a time: schedules, groups that come, and tensors changed in place must not be lost."""
    model = network()
    named = list(model.parameters())
    optimizer = torch.optim.AdamW(named[:2], lr=torch.tensor(0.1), weight_decay=0.5)
    rates = [0.1 * 0.99**i for i in range(200)]
    with eq.watch(model, optimizer, tmp_path, every=1000, strict=True) as watch:
        for step, lr in enumerate(rates, 1):
            optimizer.param_groups[0]["lr"].fill_(lr)
            if step == 71:
                optimizer.add_param_group({"params": named[2:], "lr": 0.01, "weight_decay": 0.0})
            train(model, optimizer, 1, first=step)
            assert watch.step == step
        assert watch.share > 0.0
        assert watch._measurer._memories[1].effective_steps == pytest.approx(130.0)
        right = eq.theory.memory(lr=np.array(rates, np.float32).astype(float), weight_decay=0.5)
        assert watch._measurer._memories[0].effective_steps == pytest.approx(right.effective_steps)
    with eq.Run.open(tmp_path) as run:
        lr = run.series("lr_knot/0")
        found = np.interp(np.arange(1, 201), lr.steps, lr.values)
        assert found == pytest.approx(rates, rel=1e-3)


def test_accumulation_and_clipping_are_seen_as_the_optimizer_sees_them(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        for part in range(4):
            (loss_of(model, part) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        assert watch.step == 1
    with eq.Run.open(tmp_path) as run:
        names = [name for name, _ in model.named_parameters()]
        total = math.sqrt(sum(value(run, "grad_norm", n) ** 2 for n in names))
        moved = math.sqrt(sum(value(run, "update", n) ** 2 for n in names))
    assert total == pytest.approx(0.05, rel=1e-4)
    assert moved == pytest.approx(0.1 * 0.05, rel=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_unscaled_and_skipped_steps_are_marked(fused: bool, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    norms = []
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            scaler.scale(loss).backward()
            first = next(model.parameters())
            assert first.grad is not None
            if step == 1:
                first.grad[0, 0] = math.inf
            norms.append(float(first.grad.norm()) / 2.0**10)
            scaler.step(optimizer)
            scaler.update(2.0**10)
    with eq.Run.open(tmp_path) as run:
        if fused:  # the step is called, and changes nothing
            assert list(run.series("skipped").values) == [0, 1, 0]
            assert value(run, "grad_norm", "0.weight", step=2) == math.inf
            assert value(run, "change", "0.weight", step=2) == 0
            assert value(run, "budget_decay", "0.weight", step=2) == 0
            last = 3
        else:  # the scaler does not call it
            assert watch.step == 2
            last = 2
        assert value(run, "grad_norm", "0.weight", step=1) == pytest.approx(norms[0], rel=1e-4)
        assert value(run, "grad_norm", "0.weight", step=last) == pytest.approx(norms[2], rel=1e-4)


def test_own_skipped_steps_are_marked(tmp_path: Path) -> None:
    model = network()
    optimizer = eq.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, nonfinite="skip")
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        for p in model.parameters():
            p.grad = torch.full_like(p, math.nan)
        optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert value(run, "skipped") == 1
        assert value(run, "grad_norm", "0.bias") == math.inf
        assert value(run, "budget_decay", "0.weight") == 0


def test_low_precision_that_eats_the_update_is_a_finding(tmp_path: Path) -> None:
    run, watch = watched(tmp_path / "bf16", lambda p: torch.optim.SGD(p, lr=1e-5), 2, torch.bfloat16)
    assert [f.code for f in watch.findings] == ["update-lost"]
    assert [f.code for f in run.findings] == ["update-lost"]
    assert value(run, "unchanged", "0.weight") > 0.9
    run, watch = watched(tmp_path / "good", lambda p: torch.optim.SGD(p, lr=1.0), 2, torch.bfloat16)
    assert watch.findings == []
    assert value(run, "unchanged", "0.weight") < 0.5
    run, _ = watched(tmp_path / "float32", lambda p: torch.optim.SGD(p, lr=1e-5), 2)
    assert len(run.series("unchanged", "0.weight")) == 0


def test_low_precision_is_measured_in_float32(tmp_path: Path) -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    before = [p.detach().double() for p in model.parameters()]
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        train(model, optimizer, 1, first=1)
    with eq.Run.open(tmp_path) as run:
        for (name, p), old in zip(model.named_parameters(), before, strict=True):
            assert value(run, "norm", name) == pytest.approx(float(p.detach().double().norm()), rel=1e-5)
            right = float((p.detach().double() - old).norm())
            assert value(run, "change", name) == pytest.approx(right, rel=1e-5)


def test_tied_and_frozen_parameters(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(6, 12)
            self.frozen = nn.Linear(12, 12)
            self.head = nn.Linear(12, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.embedding(x)))

    model = Tied()
    model.frozen.requires_grad_(False)
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        model(torch.tensor([1, 2, 3])).square().mean().backward()
        optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert list(run.tensors) == ["embedding.weight"]
        assert value(run, "norm", "embedding.weight") == pytest.approx(
            float(model.embedding.weight.detach().norm()), rel=1e-5
        )


class Parts(nn.Module):
    """One of each role."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 12)
        self.kernel = nn.Conv1d(3, 12, 3, padding=1)
        self.norm = nn.LayerNorm(12)
        self.middle = nn.Linear(12, 12)
        self.lm_head = nn.Linear(12, 6, bias=False)
        if tied:
            self.lm_head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x) + self.kernel(torch.ones(3, len(x))).T
        return self.lm_head(self.middle(self.norm(y)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("wrap", [None, nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_roles_and_what_a_forecast_needs(tied: bool, wrap: Any, tmp_path: Path) -> None:
    model = Parts(tied)
    start = {n: float(p.detach().norm()) for n, p in model.named_parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2]),
    ]
    for resume in (False, True):
        with eq.watch(wrap(model) if wrap else model, optimizers, tmp_path, every=1, strict=True, resume=resume):
            for _ in range(2):
                model(torch.tensor([1, 2, 3])).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
    with eq.Run.open(tmp_path) as run:
        roles = {name: t.role for name, t in run.tensors.items()}
        assert roles == {
            "table.weight": "embedding", "kernel.weight": "matrix", "kernel.bias": "bias", "norm.weight": "gain",
            "norm.bias": "bias", "middle.weight": "matrix", "middle.bias": "bias",
        } | ({} if tied else {"lm_head.weight": "head"})  # fmt: skip
        for name, tensor in run.tensors.items():
            assert tensor.info["dtype"] == "float32"
            assert tensor.info["init_norm"] == pytest.approx(start[name], rel=1e-5), name
        assert run.tensors["middle.weight"].info["update_scale"] == pytest.approx(0.2 * math.sqrt(12))
        assert run.tensors["kernel.weight"].info["update_scale"] == 1.0
        assert len(run.tensors["kernel.weight"].neurons) == 2


def test_parameters_may_come_later(tmp_path: Path) -> None:
    model = network()
    params = list(model.parameters())
    optimizer = adamw(params[:2])
    start = params[0].detach().clone()
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": params[2:], "lr": 0.5})
        train(model, optimizer, 2, first=2)
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "0.weight").steps) == [1, 2, 3, 4]
        assert list(run.series("norm", "3.weight").steps) == [3, 4]
        assert value(run, "lr/1") == 0.5
        row = run.tensors["0.weight"].neurons[0]
        now = params[0].detach()[row]
        cos = float(nn.functional.cosine_similarity(start[row], now, dim=0))
        assert math.cos(value(run, "angle", "0.weight", neuron=row)) == pytest.approx(cos, abs=1e-5)


@pytest.mark.parametrize("every", [1, 10])
def test_unfreezing_is_seen_within_a_few_steps(every: int, tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    model[3].requires_grad_(False)  # type: ignore[index]
    with eq.watch(model, optimizer, tmp_path, every=every, strict=True):
        train(model, optimizer, 20)
        model[3].requires_grad_(True)  # type: ignore[index]
        train(model, optimizer, 20, first=20)
    with eq.Run.open(tmp_path) as run:
        late = list(run.series("norm", "3.weight").steps)
        assert late[-1] == 40
        assert late[0] <= 30
        assert len(run.series("norm", "0.weight")) == (40 if every == 1 else 5)


def test_a_parameter_that_becomes_another_is_one_failure(tmp_path: Path) -> None:
    """Data of another shape cannot be compared with what was before; the step after it is measured again."""
    p = nn.Parameter(torch.ones(6, 4))
    optimizer = torch.optim.SGD([p], lr=0.1)
    with eq.watch(None, optimizer, tmp_path, every=1, diagnose=False) as watch:
        for step in range(12):
            if step == 5:
                p.data = torch.ones(3, 5)
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert [f.code for f in watch.findings] == ["watch-failed"]
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "group 0, parameter 0").steps) == [1, 2, 3, 4, 5, *range(7, 13)]
        assert run.tensors["group 0, parameter 0"].shape == (3, 5)


def test_a_compiled_model_has_its_own_names(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    compiled = torch.compile(model, backend="eager")
    with eq.watch(nn.DataParallel(compiled), optimizer, tmp_path, every=1, strict=True):  # type: ignore[arg-type]
        train(compiled, optimizer, 2)  # type: ignore[arg-type]
    with eq.Run.open(tmp_path) as run:
        assert list(run.tensors) == [name for name, _ in model.named_parameters()]


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    model, optimizer = accelerator.prepare(model, adamw(model.parameters()))
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        for step in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, step))
                optimizer.step()
                optimizer.zero_grad()
        assert watch.step == 2
    with eq.Run.open(tmp_path) as run:
        assert len(run.series("rotation", "0.weight")) == 2


def test_a_failure_is_noted_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(Frame, "after", broken)
    with caplog.at_level(logging.WARNING, "equipoise"):
        run, watch = watched(tmp_path / "a", adamw, 5, strict=False)
    assert [f.code for f in watch.findings] == ["watch-failed"]
    assert "no room" in watch.findings[0].evidence
    assert [f.code for f in run.findings] == ["watch-failed"]
    assert len([r for r in caplog.records if "watch-failed: RuntimeError: no room" in r.message and r.exc_info]) == 1
    assert watch.step == 5
    assert run.status == "finished" or run.status == "empty"
    with pytest.raises(RuntimeError, match="no room"):
        watched(tmp_path / "b", adamw, 1)


def test_a_bad_number_to_log_is_noted(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path) as watch:
        train(model, optimizer, 1)
        watch.log(loss=torch.ones(3), lr=0.1)
        watch.log(note=None)  # type: ignore[arg-type]
        watch.log(accuracy=0.5)
    assert [f.code for f in watch.findings] == ["row-refused"], "once"
    assert "must be a number" in watch.findings[0].evidence
    with eq.Run.open(tmp_path) as run:
        assert [f.code for f in run.findings] == ["row-refused"]
        assert (run.series("lr").values.tolist(), run.series("accuracy").values.tolist()) == ([0.1], [0.5])


def test_an_exception_closes_the_run_as_crashed(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())

    def fail(step: int, loss: torch.Tensor) -> None:
        if step == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), eq.watch(model, optimizer, tmp_path, every=1):
        train(model, optimizer, 3, fail)
    with eq.Run.open(tmp_path) as run:
        assert run.status == "crashed"
        assert list(run.series("norm", "0.weight").steps) == [1, 2]
    assert not optimizer._optimizer_step_pre_hooks
    train(model, optimizer, 1, first=2)


def test_resume(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    for resume, last in ((True, 3), (True, 6), (4, 7)):
        with eq.watch(model, optimizer, tmp_path, every=1, strict=True, resume=resume) as watch:
            train(model, optimizer, 3)
            assert watch.step == last
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "0.weight").steps) == [1, 2, 3, 4, 5, 6, 7]


def test_the_copy_of_the_weights_is_given_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frame, "LITTLE", 0)
    model = network()
    optimizer = adamw(model.parameters())
    held = []

    def copies() -> int | None:
        workspace = watch._measurer.frame._workspace
        return None if workspace is None else sum(cell.copy.numel() for cell in workspace.all)

    with eq.watch(model, optimizer, tmp_path, every=2, strict=True, neurons=2) as watch:
        optimizer.register_step_pre_hook(lambda *_: held.append(copies()))
        train(model, optimizer, 3)
        assert copies() is None
    size = sum(p.numel() for p in model.parameters())
    assert held == [size, size, None], "step 3 is not measured"
    kept = sum(row.numel() for row in watch._measurer.starts.values())
    assert kept == 2 * 12 + 2 * 10 + sum(p.numel() for p in model.parameters() if p.ndim == 1)


def test_kill_9_loses_less_than_half_a_second(tmp_path: Path) -> None:
    """All measured steps are there half a second after the last one, and all that was logged."""
    script = Path(__file__).with_name("killed_training.py")
    with forked.start(script, tmp_path, 20, stdout=forked.PIPE) as victim:
        assert victim.stdout is not None
        said = [int(victim.stdout.readline()) for _ in range(20)]
        time.sleep(0.5)
        victim.kill()
    assert said == list(range(1, 21))
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "0.weight").steps) == said
        assert list(run.series("loss").steps) == said
        assert run.status == "unclosed"


class Still(torch.optim.Optimizer):
    """Takes no memory of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.data.add_(p.grad, alpha=-0.1)


@pytest.mark.parametrize("neurons", [0, 2])
def test_a_measured_step_takes_one_copy_of_the_weights_and_holds_nothing(neurons: int, tmp_path: Path) -> None:
    """Every allocation of torch is counted, in a measured step and in the one after it."""
    model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(8)])
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer = Still(model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=2, neurons=neurons, strict=True, spectra=2) as watch:
        for spectra in (False, True):  # steps 1, 2 and 4 are measured, with spectra at 1 and 4
            optimizer.step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
                optimizer.step()
            assert watch.step % 2 == 0
            events: list[Any] = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
            held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
            assert size < held.max() < size + (30 << 20 if spectra else 4 << 20)
            assert held[-1] < 0.02 * size


def test_what_is_not_an_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer = Linear: must be a torch\.optim\.Optimizer"):
        eq.watch(None, nn.Linear(2, 2), tmp_path)
    with pytest.raises(ValueError, match="every = 0: must be a whole number ≥ 1"):
        eq.watch(None, adamw([nn.Parameter(torch.ones(2))]), tmp_path, every=0)


def test_an_optimizer_can_be_copied_while_watched(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        train(model, optimizer, 1)
        other = copy.deepcopy(optimizer)
        train(model, other, 2)  # moves copies of the parameters, and is not watched
        train(model, optimizer, 1)
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "0.weight").steps) == [1, 2]


def test_what_begins_at_zero_has_no_rotation(tmp_path: Path) -> None:
    """As in adapters: the first step gives it a direction."""
    last = nn.Linear(6, 4, bias=False)
    nn.init.zeros_(last.weight)
    model = nn.Sequential(nn.Linear(8, 6, bias=False), last)
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        for step in range(4):
            optimizer.zero_grad()
            (model(torch.randn(16, 8, generator=torch.Generator().manual_seed(step))) - 1).square().mean().backward()
            optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert run.series("norm", "1.weight").steps.tolist() == [1, 2, 3, 4]
        for quantity in ("rotation", "radial_change", "total_decay"):
            series = run.series(quantity, "1.weight")
            assert series.steps.tolist() == [2, 3, 4], quantity
            assert np.isfinite(series.values).all()
        assert run.series("rotation", "0.weight").steps.tolist() == [1, 2, 3, 4]


def test_an_lr_that_a_step_finds_is_that_of_the_step(tmp_path: Path) -> None:
    model = network()
    optimizer = eq.SteepestDescent(model.parameters(), sharpness=10.0, weight_decay=0.1)
    used: list[float] = []
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True):
        train(model, optimizer, 4, lambda step, loss: used.append(float(optimizer.param_groups[0]["lr"])))
    with eq.Run.open(tmp_path) as run:
        assert len(set(used)) == 4
        assert run.series("lr/0").values.tolist() == pytest.approx(used)
    again = copy.deepcopy(optimizer)  # a copy has no hooks
    again.step()
    assert float(again.param_groups[0]["lr"]) != used[-1]


@pytest.mark.parametrize("resume", [True, 5])
def test_what_is_logged_before_the_first_step_of_a_resumed_run_is_kept(resume: bool | int, tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True) as watch:
        watch.log()  # nothing is nothing
        train(model, optimizer, 5, lambda step, loss: watch.log(loss=loss))
    with eq.watch(model, optimizer, tmp_path, every=1, resume=resume, strict=True) as watch:
        watch.log(accuracy=0.5)
        train(model, optimizer, 2, lambda step, loss: watch.log(loss=loss), first=5)
    with eq.Run.open(tmp_path) as run:
        assert run.findings == []
        assert run.series("loss").steps.tolist() == list(range(1, 8))
        assert run.series("norm", "0.weight").steps.tolist() == list(range(1, 8))
        assert (run.series("accuracy").steps.tolist(), run.series("accuracy").values.tolist()) == ([6], [0.5])
