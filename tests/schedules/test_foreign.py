"""Schedulers of torch and transformers as curves: equal to stepping them, and nothing that was given moves."""

import copy
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import equipoise.schedules as sch

T = 60

FACTORIES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 7, gamma=0.3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 20, 21], gamma=0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.3, total_iters=9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=30),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=40, power=2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=T, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=7, T_mult=2, eta_min=0.001
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.7, total_steps=T),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.1, max_lr=0.5, step_size_up=8, mode="triangular2"),
    "CyclicLR exp": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.1, max_lr=0.5, step_size_up=8, mode="exp_range", gamma=0.9
    ),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.97),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.CosineAnnealingLR(o, T - 10)], milestones=[10]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 5), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ours": lambda o: sch.Scheduler(o, lr=sch.warmup_cosine(T, warmup=9, peak=0.3)),
}


def optimizer(lr: float = 0.5, groups: int = 1) -> torch.optim.Optimizer:
    params = [{"params": [torch.ones(3, requires_grad=True)], "lr": lr / (i + 1)} for i in range(groups)]
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


def stepped(o: torch.optim.Optimizer, s: Any, key: str = "lr", group: int = 0, steps: int = T) -> np.ndarray:
    values = []
    for t in range(steps):
        values.append(float(o.param_groups[group][key]))
        o.step()
        if t < steps - 1:
            s.step()
    return np.array(values)


@pytest.mark.parametrize("name", list(FACTORIES))
def test_a_factory_gives_what_stepping_gives(name: str) -> None:
    o = optimizer()
    wanted = stepped(o, FACTORIES[name](o))
    s = sch.from_torch(FACTORIES[name], T, lr=0.5)
    assert s.values().tobytes() == wanted.tobytes()
    assert s.end == T


@pytest.mark.parametrize("steps_before", [0, 5, 25])
@pytest.mark.parametrize("name", list(FACTORIES))
def test_an_instance_is_read_from_where_it_stands_and_does_not_move(name: str, steps_before: int) -> None:
    o = optimizer(groups=2)
    s = FACTORIES[name](o)
    for _ in range(steps_before):
        o.step()
        s.step()
    before = copy.deepcopy([{k: v for k, v in g.items() if k != "params"} for g in o.param_groups])
    state = copy.deepcopy(s.state_dict())
    steps = T - steps_before
    curves = [sch.from_torch(s, steps, group=i) for i in range(2)]
    assert [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] == before
    assert s.state_dict().keys() == state.keys()
    assert getattr(s, "last_epoch", None) == state.get("last_epoch")
    reference = copy.deepcopy(o.param_groups[1]["lr"])
    wanted = stepped(o, s, steps=steps)
    assert curves[0].values().tobytes() == wanted.tobytes()
    assert curves[1](1) == reference


def test_momentum_of_one_cycle_is_a_curve_too() -> None:
    o = optimizer()
    wanted = stepped(o, FACTORIES["OneCycleLR"](o), "momentum")
    assert sch.from_torch(FACTORIES["OneCycleLR"], T, key="momentum").values().tobytes() == wanted.tobytes()
    assert np.ptp(wanted) > 0.05


def test_groups_have_curves_of_their_own() -> None:
    def make(o: Any) -> Any:
        return lr_scheduler.LambdaLR(o, [lambda e: 1 / (1 + e), lambda e: 0.5**e])

    assert sch.from_torch(make, 4, lr=[1.0, 8.0], group=1).values().tolist() == [8, 4, 2, 1]
    assert sch.from_torch(make, 4, lr=[1.0, 8.0], group=0).values().tolist() == [1, 1 / 2, 1 / 3, 1 / 4]


def test_adam_and_tensor_lr() -> None:
    p = torch.ones(2, requires_grad=True)
    o = torch.optim.AdamW([p], lr=torch.tensor(0.5, dtype=torch.float64), foreach=False)
    s = lr_scheduler.OneCycleLR(o, max_lr=0.7, total_steps=T)
    curve = sch.from_torch(s, T)
    assert float(o.param_groups[0]["lr"]) == curve(1)
    wanted = stepped(o, s)
    assert curve.values().tobytes() == wanted.tobytes()


def test_what_follows_the_loss_has_no_curve() -> None:
    for given in (lr_scheduler.ReduceLROnPlateau, lr_scheduler.ReduceLROnPlateau(optimizer())):
        with pytest.raises(
            ValueError, match="ReduceLROnPlateau: it follows the loss, not the step, so it has no curve"
        ):
            sch.from_torch(given, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.from_torch(3, 5), "scheduler = 3: must be a torch scheduler or a function"),  # type: ignore[arg-type]
        (lambda: sch.from_torch(lambda o: 3, 5), "scheduler = int: must be a torch LRScheduler"),
        (
            lambda: sch.from_torch(lambda o: lr_scheduler.StepLR(optimizer(), 3), 5),
            "for the optimizer that it is called with",
        ),
        (lambda: sch.from_torch(FACTORIES["StepLR"], 0), "steps = 0: must be a whole number ≥ 1"),
        (lambda: sch.from_torch(FACTORIES["StepLR"], 5, group=1), "group = 1: must be < 1"),
        (lambda: sch.from_torch(FACTORIES["StepLR"], 5, key="beta"), "key = 'beta': must be one of lr, momentum"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sch.Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_transformers_by_name() -> None:
    transformers = pytest.importorskip("transformers")
    for name in ("linear", "cosine", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"):
        o = optimizer(0.3)
        wanted = stepped(o, transformers.get_scheduler(name, o, num_warmup_steps=6, num_training_steps=T))
        s = sch.from_transformers(name, T, warmup=6, peak=0.3)
        assert s.values().tobytes() == wanted.tobytes()
        assert s(1) == 0.0
        assert s(7) == pytest.approx(0.3)
    wsd = sch.from_transformers("warmup_stable_decay", T, warmup=6, num_decay_steps=12, decay_type="linear")
    assert wsd(40) == 1.0
    assert wsd(T - 5) == pytest.approx(0.5)


def test_transformers_cosine_is_ours_a_step_earlier() -> None:
    pytest.importorskip("transformers")
    theirs = sch.from_transformers("cosine", T, warmup=6, peak=0.3).values()
    ours = sch.warmup_cosine(T, warmup=6, peak=0.3).values()
    assert np.allclose(theirs[1:], ours[:-1], rtol=1e-12)


def test_transformers_plateau_is_refused() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="it follows the loss"):
        sch.from_transformers("reduce_lr_on_plateau", T)


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"transformers is not installed: pip install 'equipoise\[hf\]'"):
        sch.from_transformers("cosine", 10)


def test_torch_cosine_is_ours_a_step_earlier() -> None:
    theirs = sch.from_torch(lambda o: lr_scheduler.CosineAnnealingLR(o, T), T + 1).values()
    assert theirs[0] == 1.0
    assert np.allclose(theirs[1:], sch.cosine(T).values(), atol=1e-14)
    assert math.isclose(theirs[-1], 0, abs_tol=1e-15)
