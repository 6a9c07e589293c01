"""The switch between two optimizers: schedulers on it, checkpoints, what torch's habits ask of it."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import equipoise as eq
from equipoise import optim

AT, BLEND, STEPS = 4, 3, 12


def matrix(seed: int = 0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)))


def made(p: torch.nn.Parameter, **options: Any) -> optim.Switch:
    first, second = optim.AdamW([p], lr=0.01, weight_decay=0.2), torch.optim.SGD([p], lr=0.5, momentum=0.9)
    return optim.Switch(first, second, **({"at": AT, "blend": BLEND} | options))


def step(optimizer: Any, p: torch.nn.Parameter, t: int) -> None:
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
    optimizer.step()


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=STEPS + 1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.002, max_lr=0.01, step_size_up=3),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "Scheduler": lambda o: eq.schedules.Scheduler(o, lr=eq.schedules.cosine(STEPS, peak=0.01)),
    "Scheduler, relative": lambda o: eq.schedules.Scheduler(o, lr=eq.schedules.linear(STEPS, peak=1.0), relative=True),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_moves_both_in_proportion(name: str) -> None:
    """Across the switch and in the blend; lr of the first is what it would be without a switch."""
    p, q = matrix(), matrix()
    switch, alone = made(p), optim.AdamW([q], lr=0.01, weight_decay=0.2)
    schedulers = [SCHEDULERS[name](o) for o in (switch, alone)]
    for t in range(STEPS):
        step(switch, p, t)
        step(alone, q, t)
        lr = alone.param_groups[0]["lr"]
        assert switch.first.param_groups[0]["lr"] == lr
        assert switch.second.param_groups[0]["lr"] == pytest.approx(50 * lr)
        assert switch.param_groups[0]["second.lr"] == switch.second.param_groups[0]["lr"]
        if t < AT:
            torch.testing.assert_close(p, q, rtol=0, atol=0)
        for scheduler in schedulers:
            scheduler.step()
    assert switch.share == 1.0


def test_plateaus_and_weight_decay() -> None:
    p = matrix()
    switch = made(p)
    switch.second.param_groups[0]["weight_decay"] = 0.1  # after: it is the proportion of the beginning that counts
    plateau = lr_scheduler.ReduceLROnPlateau(switch, factor=0.1, patience=0)
    for t in range(3):
        step(switch, p, t)
        plateau.step(1.0)
    step(switch, p, 3)
    assert switch.first.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert switch.second.param_groups[0]["lr"] == pytest.approx(5e-3)
    assert switch.second.param_groups[0]["weight_decay"] == 0.1
    a = matrix(1)
    other = optim.Switch(optim.AdamW([a], weight_decay=0.2), optim.Lion([a], weight_decay=1.0), at=2)
    eq.schedules.Scheduler(other, weight_decay=eq.schedules.constant(0.1))
    step(other, a, 0)
    assert [o.param_groups[0]["weight_decay"] for o in (other.first, other.second)] == [0.1, 0.5]


def test_schedulers_of_the_two_are_left_alone() -> None:
    p = matrix()
    switch = made(p)
    each = [lr_scheduler.ExponentialLR(switch.first, 0.9), lr_scheduler.ExponentialLR(switch.second, 0.5)]
    for t in range(STEPS):
        switch.state_dict()  # looking moves nothing
        step(switch, p, t)
        assert switch.param_groups[0]["second.lr"] == switch.second.param_groups[0]["lr"] == 0.5 * 0.5 ** max(0, t - AT)
        for k, scheduler in enumerate(each):
            if (t >= AT) if k else (t < AT + BLEND):
                scheduler.step()


def test_options_of_one_are_of_one() -> None:
    p = matrix()
    switch = made(p)
    group = switch.param_groups[0]
    group["eps"], group["second.momentum"] = 1e-5, 0.5
    step(switch, p, 0)
    assert switch.first.param_groups[0]["eps"] == 1e-5
    assert switch.second.param_groups[0]["momentum"] == 0.5


def test_lr_as_a_tensor() -> None:
    p = matrix()
    first = torch.optim.AdamW([p], lr=torch.tensor(0.01), foreach=False)
    switch = optim.Switch(first, torch.optim.SGD([p], lr=0.5), at=2)
    scheduler = lr_scheduler.LambdaLR(switch, lambda t: 0.5**t)
    for t in range(4):
        step(switch, p, t)
        assert float(first.param_groups[0]["lr"]) == pytest.approx(0.01 * 0.5**t)
        assert switch.second.param_groups[0]["lr"] == pytest.approx(0.5 * 0.5**t)
        scheduler.step()


def test_groups_that_are_cut_differently() -> None:
    a, b, c = matrix(0), matrix(1), torch.nn.Parameter(torch.ones(8))
    first = optim.Muon([("a", a), ("c", c), ("b", b)], lr=0.02)  # matrices, and the rest
    second = torch.optim.SGD([{"params": [b, c]}, {"params": [a], "lr": 0.1}], lr=0.5)
    switch = optim.Switch(first, second, at=2)
    assert [g["param_names"] for g in switch.param_groups] == [["a"], ["b"], ["c"]]
    assert [(g["lr"], g["second.lr"]) for g in switch.param_groups] == [(0.02, 0.1), (0.02, 0.5), (3e-4, 0.5)]
    for p in (a, b, c):
        p.grad = torch.ones_like(p)
    for group in switch.param_groups:
        group["lr"] *= 0.5
    switch.step()
    assert [g["lr"] for g in first.param_groups] == [0.01, 1.5e-4]
    assert [g["lr"] for g in second.param_groups] == pytest.approx([0.25, 0.05])
    switch.param_groups[0]["lr"] = 0.003
    switch.param_groups[1]["lr"] = 0.004
    with pytest.raises(ValueError, match="lr moved differently in groups that are one in first"):
        switch.step()
    nothing = optim.Switch(optim.AdamW([a], lr=0.0), torch.optim.SGD([a], lr=0.1), at=2)
    nothing.param_groups[0]["lr"] = 0.1
    with pytest.raises(ValueError, match="lr was 0, or on a device, in first at the beginning: must be a number > 0"):
        nothing.step()


def test_groups_that_the_two_got_later() -> None:
    p, more = matrix(), matrix(1)
    switch = made(p)
    step(switch, p, 0)
    switch.first.add_param_group({"params": [more], "lr": 0.1})
    with pytest.raises(ValueError, match="second has 1 parameters: must be the same 2"):
        switch.step()
    switch.second.add_param_group({"params": [more]})
    assert [(g["lr"], g["second.lr"]) for g in switch.param_groups] == [(0.01, 0.5), (0.1, 0.5)]
    more.grad = torch.ones_like(more)
    switch.zero_grad()
    assert more.grad is None
    for t in range(1, STEPS):
        more.grad = torch.ones_like(more)
        step(switch, p, t)
    assert switch.share == 1.0


def rising(t: int) -> float:
    return 0.01 * t


TWO: dict[str, Callable[[Any], optim.Switch]] = {
    "AdamW, SGD": lambda p: optim.Switch(optim.AdamW(p), torch.optim.SGD(p, lr=0.1, momentum=0.9), at=AT, blend=BLEND),
    "SGD without state": lambda p: optim.Switch(torch.optim.SGD(p, lr=0.1), optim.Lion(p, lr=0.01), at=AT),
    "from the beginning": lambda p: optim.Switch(torch.optim.Adam(p), optim.SGDM(p, lr=0.1), at=0, blend=2),
    "Rotational": lambda p: optim.Switch(
        torch.optim.NAdam(p, lr=0.01), optim.Rotational(torch.optim.NAdam(p, lr=0.01), angle=rising), at=AT
    ),
    "CPR": lambda p: optim.Switch(optim.AdamCPR(p, lr=0.01, bound=0.1), optim.RotationalAdamW(p, lr=0.01), at=AT),
}


@pytest.mark.parametrize("saved_at", [0, 2, AT, AT + 2, AT + BLEND + 2])
@pytest.mark.parametrize("name", TWO)
def test_goes_on_to_the_bit(name: str, saved_at: int) -> None:
    """From a state, a copy and a pickle, with a scheduler, before, in and after the switch."""

    def fresh(p: torch.nn.Parameter) -> tuple[optim.Switch, Any]:
        switch = TWO[name]([p])
        return switch, lr_scheduler.OneCycleLR(switch, max_lr=0.05, total_steps=STEPS + 1, cycle_momentum=False)

    def run(p: torch.nn.Parameter, switch: Any, scheduler: Any, steps: range) -> torch.Tensor:
        for t in steps:
            used[t] = switch.param_groups[0]["lr"]
            step(switch, p, t)
            scheduler.step()
        return p.detach()

    used: dict[int, float] = {}
    p = matrix()
    switch, scheduler = fresh(p)
    run(p, switch, scheduler, range(saved_at))
    state, clock = copy.deepcopy(switch.state_dict()), copy.deepcopy(scheduler.state_dict())
    q = torch.nn.Parameter(p.detach().clone())
    twins = [copy.deepcopy(switch), pickle.loads(pickle.dumps(switch))]
    expected = run(p, switch, scheduler, range(saved_at, STEPS))
    again, later = fresh(q)
    again.load_state_dict(state)
    later.load_state_dict(clock)
    torch.testing.assert_close(run(q, again, later, range(saved_at, STEPS)), expected, rtol=0, atol=0)
    assert again.param_groups[0].keys() == switch.param_groups[0].keys()
    for twin in twins:
        (r,) = twin.param_groups[0]["params"]
        assert r is not p
        assert r is twin.first.param_groups[0]["params"][0] is twin.second.param_groups[0]["params"][0]
        for t in range(saved_at, STEPS):
            twin.param_groups[0]["lr"] = used[t]
            step(twin, r, t)
        torch.testing.assert_close(r.detach(), expected, rtol=0, atol=0)


def test_a_state_of_one_that_has_not_begun_is_zeros_and_looking_changes_nothing() -> None:
    p = matrix()
    switch = made(p)
    seen: list[Any] = []
    switch.second.register_step_pre_hook(lambda *_: seen.append(1))
    lr_scheduler.StepLR(switch.second, 5)
    p.grad = torch.ones_like(p)
    before, grad = p.detach().clone(), p.grad
    options = copy.deepcopy([o.state_dict()["param_groups"] for o in (switch.first, switch.second)])
    state = switch.state_dict()["state"][0]
    assert {"exp_avg", "exp_avg_sq", "step", "second.momentum_buffer"} == set(state)
    assert all(not x.any() for x in state.values())
    assert torch.equal(p.detach(), before)
    assert p.grad is grad
    assert not switch.first.state
    assert not switch.second.state
    assert not seen
    assert [o.state_dict()["param_groups"] for o in (switch.first, switch.second)] == options
    assert not hasattr(switch.second, "_opt_called")
