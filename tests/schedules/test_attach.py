"""The scheduler: stepping is the array bit for bit, for every curve and hyperparameter; resume; decay kinds; errors."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

import equipoise.schedules as sch
from equipoise import theory

T = 40
KINDS = [kind for kind in theory.DECAYS if kind != "cautious"]
KEYS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")


def weights() -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, generator=gen).requires_grad_(), torch.randn(3, generator=gen).requires_grad_()]


def adamw(**arguments: Any) -> torch.optim.Optimizer:
    a, b = weights()
    return torch.optim.AdamW([{"params": [a], "name": "matrix"}, {"params": [b], "name": "gains"}], lr=0.1, **arguments)


def sgd(**arguments: Any) -> torch.optim.Optimizer:
    a, b = weights()
    return torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1, momentum=0.5, **arguments)


def read(group: dict[str, Any], key: str) -> float:
    return float(group["betas"][int(key[-1]) - 1] if key.startswith("beta") else group[key])


def train(o: torch.optim.Optimizer, s: Any, steps: int, first: int = 1) -> list[dict[str, Any]]:
    """Run the loop on a fixed sequence of gradients; what each step used."""
    seen = []
    for t in range(first, first + steps):
        gen = torch.Generator().manual_seed(t)
        for group in o.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=gen)
        seen.append(
            [{k: read(g, k) for k in KEYS if isinstance(g.get(k), float | torch.Tensor)} for g in o.param_groups]
        )
        for own, g in zip(seen[-1], o.param_groups, strict=True):
            if "betas" in g:
                own |= {"beta1": float(g["betas"][0]), "beta2": float(g["betas"][1])}
        o.step()
        s.step()
    return seen


def series(seen: list[Any], key: str, group: int = 0) -> np.ndarray:
    return np.array([s[group][key] for s in seen])


@pytest.mark.parametrize("key", KEYS)
def test_stepping_is_the_array_for_every_curve_and_hyperparameter(schedule: sch.Schedule, key: str) -> None:
    """Past a block of the reader."""
    steps = 540
    curve = schedule if key in ("lr", "weight_decay", "eps") else sch.clip(schedule, high=0.99)
    o = torch.optim.SGD([torch.zeros(1)], lr=0.1) if key == "momentum" else torch.optim.AdamW([torch.zeros(1)], lr=0.1)
    arguments: dict[str, Any] = {key: curve}
    s = sch.Scheduler(o, **arguments)
    values = []
    for _ in range(steps):
        values.append(read(o.param_groups[0], key))
        o.step()
        s.step()
    assert np.array(values).tobytes() == curve.values(steps).tobytes()


def test_every_hyperparameter_at_once_with_factors_and_own_curves() -> None:
    lr, wd, b1, b2 = sch.warmup_cosine(T, warmup=5), sch.linear(T, peak=0.3), sch.linear(T, peak=0.8, final=0.9), 0.95
    eps = sch.exponential(T, peak=1e-6, final=1e-9)
    o = adamw()
    s = sch.Scheduler(
        o,
        lr=lr,
        weight_decay=wd,
        betas=(b1, b2),
        eps=eps,
        groups={"gains": {"lr": 0.5, "weight_decay": 0.0, "beta1": 0.5}, 0: {"eps": sch.constant(1e-5)}},
    )
    seen = train(o, s, T)
    assert series(seen, "lr").tobytes() == lr.values().tobytes()
    assert series(seen, "lr", 1).tobytes() == (0.5 * lr.values()).tobytes()
    assert series(seen, "weight_decay").tobytes() == wd.values().tobytes()
    assert not series(seen, "weight_decay", 1).any()
    assert series(seen, "beta1", 1).tobytes() == (0.5 * b1.values()).tobytes()
    assert np.all(series(seen, "beta2") == 0.95)
    assert np.all(series(seen, "eps") == 1e-5)
    assert series(seen, "eps", 1).tobytes() == eps.values().tobytes()
    assert s.curves[1]["lr"] == 0.5 * lr


@given(
    lr=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    wd=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    factor=st.floats(0, 2),
    warmup=st.integers(0, 10),
)
@settings(max_examples=50)
def test_stepping_is_the_array_for_any_values(lr: list[float], wd: list[float], factor: float, warmup: int) -> None:
    curve = sch.warmup(sch.from_array(lr), warmup)
    o = adamw()
    s = sch.Scheduler(o, lr=curve, weight_decay=np.array(wd), groups={1: {"lr": factor}})
    seen = train(o, s, T)
    assert series(seen, "lr").tobytes() == curve.values(T).tobytes()
    assert series(seen, "lr", 1).tobytes() == (factor * curve.values(T)).tobytes()
    assert series(seen, "weight_decay").tobytes() == sch.from_array(wd).values(T).tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda: adamw(foreach=True),
        lambda: adamw(fused=True),
        lambda: adamw(foreach=False),
        lambda: adamw(amsgrad=True),
        lambda: sgd(foreach=True),
        lambda: sgd(nesterov=True),
        lambda: torch.optim.RMSprop(weights(), lr=0.1, momentum=0.5),
        lambda: torch.optim.NAdam(weights(), lr=0.1),
        lambda: torch.optim.Adafactor(weights(), lr=0.1),
    ],
)
def test_any_torch_optimizer_trains_as_with_the_values_set_by_hand(make: Callable[[], torch.optim.Optimizer]) -> None:
    lr, wd = sch.warmup_cosine(T, warmup=5, peak=0.02), sch.linear(T, peak=0.3, final=0.1)

    class ByHand:
        def __init__(self, o: torch.optim.Optimizer) -> None:
            self.o, self.t = o, 0
            self.step()

        def step(self) -> None:
            for g in self.o.param_groups:
                g["lr"], g["weight_decay"] = lr.values(T + 1)[self.t], wd.values(T + 1)[self.t]
            self.t += 1

    ours, by_hand = make(), make()
    train(ours, sch.Scheduler(ours, lr=lr, weight_decay=wd), T)
    train(by_hand, ByHand(by_hand), T)
    for a, b in zip(ours.param_groups, by_hand.param_groups, strict=True):
        for p, q in zip(a["params"], b["params"], strict=True):
            assert torch.equal(p, q)
            assert torch.isfinite(p).all()


@pytest.mark.parametrize("arguments", [{"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensor_lr_is_filled_in_place(arguments: dict[str, Any], dtype: torch.dtype) -> None:
    lr = sch.warmup_cosine(T, warmup=5, peak=1 / 3)
    tensor = torch.tensor(0.1, dtype=dtype)
    o = torch.optim.AdamW(weights(), lr=tensor, **arguments)
    s = sch.Scheduler(o, lr=lr)
    seen = train(o, s, T)
    assert o.param_groups[0]["lr"] is tensor
    assert np.array_equal(series(seen, "lr"), lr.values().astype(str(dtype).split(".")[1]))
    assert torch.equal(o.param_groups[0]["initial_lr"], torch.tensor(0.1, dtype=dtype))
    assert s.get_last_lr()[0] is not tensor


def test_compiled_step_with_tensor_lr_does_not_recompile() -> None:
    """The lr that the graph reads is the one that the scheduler fills."""
    p = torch.ones(3)
    lr = torch.tensor(1.0)
    o = torch.optim.SGD([p.requires_grad_()], lr=lr)
    s = sch.Scheduler(o, lr=sch.from_array([1.0, 0.5, 0.25]))
    graphs: list[Any] = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=count)
    def step(g: torch.Tensor) -> None:
        with torch.no_grad():
            p.sub_(lr * g)

    for wanted in (0.0, -0.5, -0.75, -1.0):
        step(torch.ones(3))
        assert torch.all(p == wanted)
        o.step()
        s.step()
    assert len(graphs) == 1


def test_tensor_betas_are_filled_in_place() -> None:
    pair = torch.tensor(0.5), torch.tensor(0.6)
    o = torch.optim.Adam([torch.zeros(1)], lr=0.1)
    o.param_groups[0]["betas"] = pair
    s = sch.Scheduler(o, beta1=sch.from_array([0.25, 0.75]))
    o.step()
    s.step()
    assert o.param_groups[0]["betas"][0] is pair[0]
    assert [float(b) for b in pair] == pytest.approx([0.75, 0.6])


def test_relative_curves_are_factors_on_what_each_group_had() -> None:
    a, b = weights()
    o = torch.optim.AdamW(
        [{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.4, "weight_decay": 0.0}], weight_decay=0.3
    )
    lr = sch.cosine(T)
    first = sch.Scheduler(o, lr=lr, weight_decay=sch.linear(T), relative=True, groups={1: {"lr": 0.5}})
    train(o, first, 10)
    again = sch.Scheduler(o, lr=lr, weight_decay=sch.linear(T), relative=True, groups={1: {"lr": 0.5}})
    for s in (first, again):  # the second starts from what the groups had at first, not from what they have now
        assert s.curves[0] == {"lr": lr * 0.1, "weight_decay": sch.linear(T) * 0.3}
        assert s.curves[1] == {"lr": lr * 0.2, "weight_decay": sch.linear(T) * 0.0}
    assert [g["initial_lr"] for g in o.param_groups] == [0.1, 0.4]
    seen = train(o, again, T)
    assert series(seen, "lr", 1).tobytes() == (0.2 * lr.values()).tobytes()


def test_absolute_curves_leave_initial_lr_what_it_was() -> None:
    o = adamw()
    s = sch.Scheduler(o, lr=sch.constant(0.7))
    assert o.param_groups[0]["lr"] == 0.7
    assert o.param_groups[0]["initial_lr"] == 0.1
    assert s.base_lrs == [0.1, 0.1]


def test_without_a_curve_for_lr_another_scheduler_may_drive_it() -> None:
    o = sgd()
    step_lr = lr_scheduler.StepLR(o, 5, gamma=0.5)
    s = sch.Scheduler(o, weight_decay=sch.linear(T, peak=0.1))

    class Both:
        def step(self) -> None:
            step_lr.step()
            s.step()

    seen = train(o, Both(), T)
    assert (
        series(seen, "lr").tobytes()
        == sch.from_torch(lambda x: lr_scheduler.StepLR(x, 5, 0.5), T, lr=0.1).values().tobytes()
    )
    assert series(seen, "weight_decay").tobytes() == sch.linear(T, peak=0.1).values().tobytes()


@pytest.mark.parametrize("lr_max", [None, 0.03])
@pytest.mark.parametrize("kind", KINDS)
def test_decay_kinds_give_the_wanted_product(kind: str, lr_max: float | None) -> None:
    peak, wd = 0.02, 0.004
    lr = sch.warmup_cosine(T, warmup=5, peak=peak, final=0.002)
    o = adamw(weight_decay=wd)
    seen = train(o, sch.Scheduler(o, lr=lr, decay=kind, lr_max=lr_max, groups={1: {"lr": 0.5}}), T)
    for i, factor in enumerate((1, 0.5)):
        eta, lam = series(seen, "lr", i), series(seen, "weight_decay", i)
        top = (lr_max or peak) * factor
        wanted = {"lr": eta, "schedule": eta / top, "independent": np.ones(T), "corrected": eta**2 / top}[kind] * wd
        assert np.allclose(eta * lam, wanted, rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_decay_kinds_shrink_the_weights_by_the_wanted_share(kind: str) -> None:
    """Without gradients torch's AdamW only decays: the weights are the product of what each step keeps."""
    lr = sch.warmup_cosine(T, warmup=5, peak=0.2, final=0.02)
    wd = sch.linear(T, peak=0.2, final=0.1)
    p = torch.ones(2, dtype=torch.float64, requires_grad=True)
    o = torch.optim.AdamW([p], lr=0.1)
    s = sch.Scheduler(o, lr=lr, weight_decay=wd, decay=kind, lr_max=0.3)
    for _ in range(T):
        p.grad = torch.zeros_like(p)
        o.step()
        s.step()
    eta, lam = lr.values(), wd.values()
    share = {"lr": eta, "schedule": eta / 0.3, "independent": np.ones(T), "corrected": eta**2 / 0.3}[kind] * lam
    assert p.detach().numpy() == pytest.approx(np.prod(1 - share), rel=1e-12)


def test_decay_kind_is_not_applied_twice_by_a_second_scheduler() -> None:
    o = adamw(weight_decay=0.3)
    curves = [sch.Scheduler(o, lr=sch.linear(T, final=0.1), decay="corrected").curves for _ in range(2)]
    assert curves[0] == curves[1]


def test_frozen_group_under_corrected_decay() -> None:
    o = adamw(weight_decay=0.3)
    sch.Scheduler(o, lr=sch.cosine(T), decay="corrected", groups={1: {"lr": 0.0}})
    assert o.param_groups[1]["lr"] == 0.0


@pytest.mark.parametrize("order", ["optimizer first", "scheduler first", "scheduler made last"])
@pytest.mark.parametrize("cut", [0, 1, 17, T - 1])
def test_resume_is_bit_identical(cut: int, order: str) -> None:
    def make(o: torch.optim.Optimizer) -> sch.Scheduler:
        return sch.Scheduler(
            o,
            lr=sch.warmup_cosine(T, warmup=5, peak=0.02),
            weight_decay=sch.from_array(np.linspace(0.3, 0.1, T)),
            beta2=sch.linear(T, peak=0.9, final=0.99),
            decay="corrected",
            groups={"gains": {"weight_decay": 0.0}},
        )

    whole = adamw()
    wanted = train(whole, make(whole), T)
    first = adamw()
    s = make(first)
    seen = train(first, s, cut)
    saved = json.loads(json.dumps(s.state_dict())), copy.deepcopy(first.state_dict())
    second = adamw()
    with torch.no_grad():
        for p, q in zip(weights_of(second), weights_of(first), strict=True):
            p.copy_(q)
    if order == "scheduler made last":
        second.load_state_dict(saved[1])
        resumed = make(second)
        resumed.load_state_dict(saved[0])
    else:
        resumed = make(second)
        loads = [lambda: second.load_state_dict(saved[1]), lambda: resumed.load_state_dict(saved[0])]
        for load in loads if order == "optimizer first" else loads[::-1]:
            load()
    assert resumed.last_epoch == cut
    assert resumed.get_last_lr() == s.get_last_lr()
    seen += train(second, resumed, T - cut, first=cut + 1)
    assert seen == wanted
    for p, q in zip(weights_of(second), weights_of(whole), strict=True):
        assert torch.equal(p, q)


def weights_of(o: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for g in o.param_groups for p in g["params"]]


def test_state_is_plain_and_safe_to_load(tmp_path: Any) -> None:
    s = sch.Scheduler(adamw(), lr=sch.cosine(T))
    torch.save(s.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state == s.state_dict()
    assert state["last_epoch"] == 0
    assert len(state["fingerprint"]) == 16
    big = sch.Scheduler(adamw(), lr=sch.from_array(np.linspace(1, 0.1, 1_000_000)))
    assert len(json.dumps(big.state_dict())) < 1000


def test_a_state_of_other_curves_is_refused_and_says_what_differs() -> None:
    saved = sch.Scheduler(adamw(), lr=sch.cosine(T), weight_decay=0.1, groups={1: {"weight_decay": 0.5}}).state_dict()
    other = sch.Scheduler(adamw(), lr=sch.cosine(2 * T), beta1=0.8, groups={1: {"beta1": sch.constant(0.7)}})
    with pytest.raises(ValueError, match="state_dict is of other curves") as error:
        other.load_state_dict(saved)
    message = str(error.value)
    assert "lr of group 0 was cosine(steps=40) and is cosine(steps=80)" in message
    assert "weight_decay of group 1 was scale(constant(peak=0.1), factor=0.5) and is left alone" in message
    assert "beta1 of group 1 was left alone and is constant(peak=0.7)" in message
    other.load_state_dict(saved | {"last_epoch": 7}, strict=False)
    assert other.get_last_lr()[0] == sch.cosine(2 * T)(8)


def test_one_value_of_a_long_array_makes_another_state() -> None:
    array = np.linspace(1, 0.1, 1000)
    saved = sch.Scheduler(adamw(), lr=array).state_dict()
    array[500] += 1e-15
    with pytest.raises(ValueError, match="lr of group 0 was from_array"):
        sch.Scheduler(adamw(), lr=array).load_state_dict(saved)


def test_states_of_other_numbers_of_groups_and_of_others_are_refused() -> None:
    saved = sch.Scheduler(adamw(), lr=sch.cosine(T)).state_dict()
    one = torch.optim.AdamW(weights(), lr=0.1)
    with pytest.raises(ValueError, match="it has 2 parameter groups and here are 1"):
        sch.Scheduler(one, lr=sch.cosine(T)).load_state_dict(saved)
    with pytest.raises(ValueError, match="must be a state of equipoise's Scheduler"):
        sch.Scheduler(one, lr=sch.cosine(T)).load_state_dict(lr_scheduler.StepLR(one, 3).state_dict())


def test_it_is_an_lr_scheduler_inside_others() -> None:
    """A SequentialLR starts, switches and resumes it, all hyperparameters included."""

    def make(o: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
        first = sch.Scheduler(o, lr=sch.constant(0.1), weight_decay=sch.constant(0.5))
        second = sch.Scheduler(o, lr=sch.cosine(T), weight_decay=sch.linear(T))
        return lr_scheduler.SequentialLR(o, [first, second], milestones=[7])

    o = adamw()
    sequence = make(o)
    assert isinstance(sequence._schedulers[0], lr_scheduler.LRScheduler)
    seen = train(o, sequence, T)
    for key, tail in (("lr", sch.cosine(T)), ("weight_decay", sch.linear(T))):
        wanted = sch.join(sch.constant({"lr": 0.1, "weight_decay": 0.5}[key]), tail, at=[7])
        assert series(seen, key).tobytes() == wanted.values(T).tobytes()


def test_calling_it_before_the_optimizer_warns_as_torch_does() -> None:
    s = sch.Scheduler(adamw(), lr=sch.cosine(T))
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        s.step()


def test_last_epoch_starts_in_the_middle() -> None:
    o = adamw()
    s = sch.Scheduler(o, lr=sch.cosine(T), last_epoch=6)
    assert s.last_epoch == 7
    assert o.param_groups[0]["lr"] == sch.cosine(T)(8)
