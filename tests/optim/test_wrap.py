"""The wrapper that makes a rotational variant of any torch optimizer, and the switch between two."""

import copy
import pickle
from typing import Any

import pytest
import torch

from equipoise import optim, theory


def matrix(seed: int = 0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)))


def drive(optimizer: Any, params: list[torch.nn.Parameter], steps: range) -> list[torch.Tensor]:
    for t in steps:
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in params]


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (lambda p: torch.optim.NAdam(p, lr=0.01), 0.03),
        (lambda p: torch.optim.Adagrad(p, lr=0.01), 0.05),  # its steps shrink as 1/√t, which the tracker follows late
        (lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), 0.03),
        (lambda p: optim.Lion(p, lr=0.01), 0.03),
    ],
)
def test_any_optimizer_rotates_by_the_angle(make: Any, tolerance: float) -> None:
    w, bias = matrix(), torch.nn.Parameter(torch.ones(8))
    optimizer = optim.Rotational(make([w, bias]), angle=0.05)
    plain = torch.nn.Parameter(torch.ones(8))
    inner = make([plain])
    norm = w.detach().norm(dim=1)
    for t in range(20):
        before = w.detach().double().clone()
        generator = torch.Generator().manual_seed(t)
        w.grad = torch.randn(w.shape, generator=generator)
        bias.grad = torch.randn(8, generator=generator)
        plain.grad = bias.grad.clone()
        optimizer.step()
        inner.step()
        angle = torch.nn.functional.cosine_similarity(before, w.detach().double(), dim=1).acos().mean()
        assert angle.item() == pytest.approx(0.05, rel=tolerance)
    torch.testing.assert_close(w.detach().norm(dim=1), norm)
    torch.testing.assert_close(bias.detach(), plain.detach())


def test_wrapped_adamw_is_rotational_adamw() -> None:
    a, b = matrix(), matrix()
    wrapped = optim.Rotational(torch.optim.AdamW([a], lr=0.01, weight_decay=0.1))
    ours = optim.RotationalAdamW([b], lr=0.01, weight_decay=0.1)
    assert (
        wrapped._wanted(wrapped.param_groups[0], (4, 4), 1)
        == theory.stationary("adamw", lr=0.01, weight_decay=0.1, size=1).rotation
    )
    one, two = drive(wrapped, [a], range(60)), drive(ours, [b], range(60))
    cosine = torch.nn.functional.cosine_similarity(one[0], two[0], dim=1)
    assert cosine.min() > 0.999


def test_rows_of_one_number_keep_the_inner_step() -> None:
    w, v = (torch.nn.Parameter(torch.arange(-2.0, 4.0).reshape(6, 1)) for _ in range(2))
    optimizer = optim.Rotational(torch.optim.AdamW([w], lr=0.01, weight_decay=0.1), center=True)
    plain = torch.optim.AdamW([v], lr=0.01, weight_decay=0.1)
    torch.testing.assert_close(drive(optimizer, [w], range(4)), drive(plain, [v], range(4)), rtol=0, atol=0)


def test_schedulers_reach_the_inner_optimizer() -> None:
    w = matrix()
    optimizer = optim.Rotational(torch.optim.AdamW([w], lr=0.01, weight_decay=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    drive(optimizer, [w], range(1))
    scheduler.step()
    assert optimizer.inner.param_groups[0]["lr"] == 0.005


def test_rotational_resumes() -> None:
    def fresh(p: torch.nn.Parameter) -> optim.Rotational:
        return optim.Rotational(torch.optim.NAdam([p], lr=0.01), angle=0.02)

    a = matrix()
    whole = drive(fresh(a), [a], range(10))
    b = matrix()
    first = fresh(b)
    drive(first, [b], range(4))
    state = copy.deepcopy(first.state_dict())
    c = torch.nn.Parameter(b.detach().clone())
    second = fresh(c)
    second.load_state_dict(state)
    torch.testing.assert_close(drive(second, [c], range(4, 10)), whole, rtol=0, atol=0)


def test_rotational_takes_a_state_of_the_inner_optimizer_alone() -> None:
    """A run of AdamW goes on rotational: its averages are kept, rows are tracked from there."""
    a, b = matrix(), matrix()
    plain = torch.optim.AdamW([a], lr=0.01, weight_decay=0.1)
    drive(plain, [a], range(4))
    optimizer = optim.Rotational(torch.optim.AdamW([b], lr=0.5, weight_decay=0.1))
    drive(optimizer, [b], range(2))
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    with torch.no_grad():
        b.copy_(a)
    fresh = optim.Rotational(plain)
    torch.testing.assert_close(drive(optimizer, [b], range(4, 8)), drive(fresh, [a], range(4, 8)), rtol=0, atol=0)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_rotational_knows_its_step_where_nothing_has_turned_yet() -> None:
    w, bias = matrix(), torch.nn.Parameter(torch.ones(8))

    def fresh() -> optim.Rotational:
        return optim.Rotational(torch.optim.NAdam([w, bias], lr=0.01), angle=lambda t: 0.01 * t)

    first = fresh()
    for _ in range(5):  # the matrix is frozen
        bias.grad = torch.ones(8)
        first.step()
    second = fresh()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    before = w.detach().clone()
    drive(second, [w], range(1))
    turned = torch.nn.functional.cosine_similarity(before, w.detach(), dim=1).acos().mean()
    assert turned.item() == pytest.approx(0.06, rel=0.03)


def test_two_that_load_one_state_do_not_share_it() -> None:
    a, b, c = matrix(), matrix(), matrix()
    state = optim.Rotational(torch.optim.NAdam([a], lr=0.01), angle=0.02)
    drive(state, [a], range(3))
    saved = copy.deepcopy(state.state_dict())
    one, two = (optim.Rotational(torch.optim.NAdam([p], lr=0.01), angle=0.02) for p in (b, c))
    for optimizer in (one, two):
        optimizer.load_state_dict(saved)
    drive(one, [b], range(3, 6))
    assert [int(o.state[p]["row_step"]) for o, p in ((one, b), (two, c))] == [6, 3]


def test_copies_of_wrappers_go_on_alike() -> None:
    w = matrix()
    rotational = optim.Rotational(torch.optim.NAdam([w], lr=0.01), angle=0.02)
    v = matrix(1)
    switch = optim.Switch(optim.Adam([v], lr=0.01), torch.optim.SGD([v], lr=0.1), at=2, blend=3)
    for optimizer, p in ((rotational, w), (switch, v)):
        drive(optimizer, [p], range(3))
        twins = (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)))
        expected = drive(optimizer, [p], range(3, 6))
        for twin in twins:
            assert twin.param_groups[0]["params"][0] is not p
            got = drive(twin, twin.param_groups[0]["params"], range(3, 6))
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_grad_scaler_unscales_once_for_a_switch() -> None:
    a, b = matrix(), matrix()
    scaled = optim.Switch(torch.optim.SGD([a], lr=0.1), torch.optim.SGD([a], lr=0.01), at=2, blend=2)
    plain = optim.Switch(torch.optim.SGD([b], lr=0.1), torch.optim.SGD([b], lr=0.01), at=2, blend=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(6):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(t))
        for p, optimizer in ((a, scaled), (b, plain)):
            optimizer.zero_grad()
            loss = (p * x).sum()
            if optimizer is scaled:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
    torch.testing.assert_close(a, b)


def test_groups_are_added_to_the_inner_optimizer() -> None:
    w, extra = matrix(), matrix(1)
    optimizer = optim.Rotational(torch.optim.AdamW([w], lr=0.01, weight_decay=0.1))
    optimizer.add_param_group({"params": [extra]})
    before = extra.detach().clone()
    drive(optimizer, [w, extra], range(2))
    assert not torch.equal(extra, before)
    torch.testing.assert_close(extra.detach().norm(dim=1), before.norm(dim=1))
    switch = optim.Switch(torch.optim.SGD([w]), torch.optim.SGD([w]), at=1)
    with pytest.raises(ValueError, match="must be called on first and on second"):
        switch.add_param_group({"params": [extra]})


def test_our_own_optimizers_bring_their_rotation() -> None:
    inner = optim.SignSGDM([matrix()], lr=0.01, weight_decay=0.1, decay="independent")
    wrapped = optim.Rotational(inner)
    expected = theory.stationary("signsgdm", lr=0.01, weight_decay=0.1, decay="independent", size=1, momentum=0.9)
    assert wrapped._wanted(inner.param_groups[0], (4, 4), 1) == expected.rotation


def test_unknown_rotations_are_refused() -> None:
    with pytest.raises(ValueError, match="angle = None: must be given for Adagrad"):
        optim.Rotational(torch.optim.Adagrad([matrix()]))
    with pytest.raises(ValueError, match="weight_decay = 0 in the inner optimizer"):
        optim.Rotational(torch.optim.Adam([matrix()]))
    with pytest.raises(ValueError, match="optimizer = int: must be a torch optimizer"):
        optim.Rotational(3)  # type: ignore[arg-type]
    held = torch.optim.AdamW([matrix()], weight_decay=0.1)
    with pytest.raises(ValueError, match="optimizer = Rotational: must be one that holds no other"):
        optim.Rotational(optim.Rotational(held))
    with pytest.raises(ValueError, match=r"optimizer = Switch: .*wrap each of its two"):
        optim.Rotational(optim.Switch(held, held, at=1), angle=0.1)
    with pytest.raises(ValueError, match="optimizer = HyperballAdamW: must be one that does not keep norms itself"):
        optim.Rotational(optim.HyperballAdamW([matrix()]), angle=0.1)
    with pytest.raises(ValueError, match="optimizer = LBFGS: must be a torch optimizer whose step needs no closure"):
        optim.Rotational(torch.optim.LBFGS([matrix()]), angle=0.1)
    low = torch.nn.Parameter(matrix().detach().bfloat16())
    with pytest.raises(ValueError, match=r"parameters in torch\.bfloat16: must be float32"):
        optim.Rotational(torch.optim.NAdam([low]), angle=0.1)
    with pytest.raises(ValueError, match="state_dict: must be one that an optimizer saved"):
        optim.Rotational(torch.optim.NAdam([matrix()]), angle=0.1).load_state_dict({})


@pytest.mark.parametrize("blend", [0, 4])
def test_switch(blend: int) -> None:
    w, a, b = matrix(), matrix(), matrix()
    switch = optim.Switch(optim.Adam([w], lr=0.01), torch.optim.SGD([w], lr=0.1), at=3, blend=blend)
    one, two = optim.Adam([a], lr=0.01), torch.optim.SGD([b], lr=0.1)
    assert_equal = torch.testing.assert_close
    assert_equal(drive(switch, [w], range(3)), drive(one, [a], range(3)), rtol=0, atol=0)
    for t in range(3, 3 + blend):
        s = switch.share
        assert 0 < s < 1
        with torch.no_grad():
            a.copy_(w)
            b.copy_(w)
        (first,), (second,) = drive(one, [a], range(t, t + 1)), drive(two, [b], range(t, t + 1))
        (got,) = drive(switch, [w], range(t, t + 1))
        assert_equal(got, (1 - s) * first + s * second)
    with torch.no_grad():
        b.copy_(w)
    later = range(3 + blend, 8 + blend)
    assert switch.share == 1.0
    assert_equal(drive(switch, [w], later), drive(two, [b], later))


def test_switch_resumes_and_refuses() -> None:
    def fresh(p: torch.nn.Parameter) -> optim.Switch:
        return optim.Switch(torch.optim.SGD([p], lr=0.1, momentum=0.9), optim.AdamW([p], lr=0.01), at=5, blend=3)

    a, b = matrix(), matrix()
    whole = drive(fresh(a), [a], range(12))
    first = fresh(b)
    drive(first, [b], range(6))
    state = copy.deepcopy(first.state_dict())
    c = torch.nn.Parameter(b.detach().clone())
    second = fresh(c)
    second.load_state_dict(state)
    torch.testing.assert_close(drive(second, [c], range(6, 12)), whole, rtol=0, atol=0)
    with pytest.raises(ValueError, match="second has 1 parameters: must be the same 2 as first's"):
        optim.Switch(torch.optim.SGD([a, b]), torch.optim.SGD([a]), at=1)
    with pytest.raises(ValueError, match="at = -1: must be a whole number"):
        optim.Switch(torch.optim.SGD([a]), torch.optim.SGD([a]), at=-1)
    with pytest.raises(ValueError, match="must be one that an optimizer saved"):
        second.load_state_dict({})
    with pytest.raises(ValueError, match="must be one that a Switch of such optimizers saved"):
        second.load_state_dict(second.first.state_dict())


def test_a_group_may_have_its_own_granularity() -> None:
    """As `param_groups` gives it to weights whose rows are not neurons."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(4, 6))
    inner = torch.optim.SGD([{"params": [w], "granularity": "tensor"}], lr=0.1)
    optimizer = optim.Rotational(inner, angle=0.1)
    rows, whole = w.detach().norm(dim=1), w.detach().norm()
    w.grad = torch.randn_like(w)
    optimizer.step()
    torch.testing.assert_close(w.detach().norm(), whole)
    assert not torch.allclose(w.detach().norm(dim=1), rows, rtol=1e-3)
