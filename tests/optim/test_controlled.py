"""Rotational variants deliver the rotation that was asked for; hyperball and constrain do what they say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.optim import references
from tests.optim.table import TURN
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise import optim, schedules, theory
from equipoise.optim.moves import Piece
from equipoise.optim.options import group_options
from equipoise.optim.rows import center_rows, centred
from equipoise.theory import rotation_angle

ROWS, COLUMNS = 64, 256


def settled(optimizer: Any) -> theory.Stationary:
    """Where lr and weight decay of an optimizer's first group settle a row, its norm over √size."""
    group = optimizer.param_groups[0]
    return optimizer.dynamics(group).stationary(1, lr=group["lr"], weight_decay=group["weight_decay"])


def delivered(
    optimizer: Any, w: torch.nn.Parameter, *, steps: int, mean: float = 0.0, fixed: bool = False
) -> np.ndarray:
    """Mean rotation over the rows at every step, with gradients of unit noise and a row mean."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for _ in range(steps):
        level = torch.ones(ROWS, 1) if fixed else torch.randn(ROWS, 1, generator=generator)
        w.grad = (torch.randn(ROWS, COLUMNS, generator=generator) + mean * level).to(w.dtype)
        before = _weights(optimizer, w)
        optimizer.step()
        change = _weights(optimizer, w) - before
        norm = before.norm(dim=1)
        radial = (change * before).sum(1) / norm
        theta = rotation_angle(norm=norm.numpy(), change_norm=change.norm(dim=1).numpy(), radial=radial.numpy())
        out.append(float(theta.mean()))
    return np.array(out)


def _weights(optimizer: Any, w: torch.nn.Parameter) -> torch.Tensor:
    state = optimizer.state.get(w, {})
    return state.get("master", w.detach()).double().clone()


def matrix(dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3)).to(dtype))


VARIANTS = [
    (optim.RotationalSGDM, {}),
    (optim.RotationalAdamW, {}),
    (optim.RotationalAdamW, {"betas": (0.9, 0.95)}),
    (optim.RotationalAdamW, {"betas": (0.95, 0.95), "nested": True}),
    (optim.RotationalAdamW, {"bias_correction": False}),
    (optim.RotationalLion, {}),
    (optim.RotationalSignSGDM, {}),
]


@pytest.mark.parametrize(("make", "options"), VARIANTS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_rotation_is_the_equilibriums_from_the_first_step(make: Any, options: dict) -> None:
    w = matrix()
    optimizer = make([w], **(TURN | options))
    wanted = settled(optimizer).rotation
    got = delivered(optimizer, w, steps=600) / wanted
    assert np.abs(got - 1).max() < 0.03
    assert abs(got[-200:].mean() - 1) < 0.02


@pytest.mark.parametrize("fixed", [False, True], ids=["mean that changes", "mean that stays"])
@pytest.mark.parametrize("mean", [1.0, 3.0])
@pytest.mark.parametrize("make", [optim.RotationalSGDM, optim.RotationalAdamW])
def test_a_row_mean_takes_nothing_from_a_centred_rotation(make: Any, mean: float, fixed: bool) -> None:
    w = matrix()
    optimizer = make([w], center=True, **TURN)
    wanted = settled(optimizer).rotation
    got = delivered(optimizer, w, steps=600, mean=mean, fixed=fixed) / wanted
    assert np.abs(got - 1).max() < 0.03
    assert abs(got[-200:].mean() - 1) < 0.02
    assert w.detach().mean(dim=1).abs().max() < 1e-4


@pytest.mark.parametrize("mean", [1.0, 3.0])
def test_the_papers_algorithm_loses_rotation_to_the_mean(mean: float) -> None:
    """The flaw itself, so that the mended variant is known to differ from it."""
    w = matrix()
    optimizer = optim.RotationalAdamW([w], center=True, reference="paper", **TURN)
    wanted = settled(optimizer).rotation
    got = delivered(optimizer, w, steps=600, mean=mean) / wanted
    assert got[-200:].mean() < {1.0: 0.8, 3.0: 0.4}[mean]


@pytest.mark.parametrize("center", [False, True])
def test_paper_mode_is_algorithm_1(center: bool) -> None:
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((5, 7)), rng.standard_normal((30, 5, 7))
    w = torch.nn.Parameter(torch.from_numpy(start.copy()))
    betas, eps, angle = (0.9, 0.95), 1e-8, 0.03
    optimizer = optim.RotationalAdamW([w], angle=angle, betas=betas, eps=eps, reference="paper", center=center)
    for g in grads:
        w.grad = torch.from_numpy(g)
        optimizer.step()
    direction = references.adam_direction(betas, eps)
    expected = references.algorithm_1(start, grads, direction=direction, angle=angle, center=center)
    np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-9)


def test_small_rotations_survive_in_bfloat16() -> None:
    w = matrix(torch.bfloat16)
    optimizer = optim.RotationalAdamW([w], angle=3e-4)
    start = w.detach().double().clone()
    got = delivered(optimizer, w, steps=200)
    assert np.abs(got / 3e-4 - 1).max() < 0.03
    moved = torch.nn.functional.cosine_similarity(start, w.detach().double(), dim=1).acos().mean()
    exact = torch.nn.functional.cosine_similarity(start, optimizer.state[w]["master"].double(), dim=1).acos().mean()
    assert float(moved) == pytest.approx(float(exact), rel=0.05)


def test_angles_given_as_numbers_schedules_and_speeds() -> None:
    w = matrix()
    got = delivered(optim.RotationalLion([w], angle=0.2), w, steps=50)
    np.testing.assert_allclose(got, 0.2, rtol=0.01)
    w = matrix()
    curve = schedules.linear(50, peak=0.1, final=0.01)
    got = delivered(optim.RotationalAdamW([w], angle=curve), w, steps=50)
    np.testing.assert_allclose(got, curve.values(50), rtol=0.03)
    w = matrix()
    speeds = torch.linspace(0.5, 2.0, ROWS)
    optimizer = optim.RotationalAdamW([{"params": [w], "speeds": speeds}], angle=0.05)
    before = w.detach().clone()
    w.grad = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    angle = torch.nn.functional.cosine_similarity(before.double(), w.detach().double(), dim=1).acos()
    torch.testing.assert_close(angle, 0.05 * speeds.double(), rtol=1e-3, atol=0)


def test_heads_are_rows_of_their_own() -> None:
    w = torch.nn.Parameter(torch.randn(12, 8, generator=torch.Generator().manual_seed(0)))
    before = w.detach().reshape(3, -1).norm(dim=1)
    optimizer = optim.RotationalAdamW([w], angle=0.1, granularity=3)
    w.grad = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    torch.testing.assert_close(w.detach().reshape(3, -1).norm(dim=1), before)
    assert optimizer.state[w]["row_norm"].shape == (3, 1)


def test_norm_target() -> None:
    w = matrix()
    delivered(optim.RotationalAdamW([w], angle=0.01, norm=2.0), w, steps=2)
    torch.testing.assert_close(w.detach().norm(dim=1), torch.full((ROWS,), 2.0))


def test_zero_rows_grow_to_their_equilibrium_and_then_rotate() -> None:
    w = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
    optimizer = optim.RotationalAdamW([w], lr=0.05, weight_decay=0.5, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        w.grad = torch.randn(ROWS, COLUMNS, generator=generator)
        optimizer.step()
    norm = settled(optimizer).norm * COLUMNS**0.5
    assert w.detach().norm(dim=1).mean().item() == pytest.approx(norm, rel=0.1)
    assert float((optimizer.state[w]["row_norm"] > 0).float().mean()) == 1.0


def test_rotation_without_decay_is_refused() -> None:
    with pytest.raises(
        ValueError, match="weight_decay = 0: must be > 0, because the rotation comes from lr and weight decay"
    ):
        optim.RotationalAdamW([matrix()], weight_decay=0.0)
    optim.RotationalAdamW([{"params": [matrix()], "rotate": False}], weight_decay=0.0)


def test_vectors_take_the_plain_step() -> None:
    bias, twin = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    rotational, plain = optim.RotationalAdamW([bias], **TURN), optim.AdamW([twin], **TURN)
    for t in range(5):
        bias.grad = torch.full((5,), float(t - 2))
        twin.grad = bias.grad.clone()
        rotational.step()
        plain.step()
    torch.testing.assert_close(bias.detach(), twin.detach())


def test_adam_l2s_direction_at_adamws_rotation() -> None:
    w = matrix()
    optimizer = optim.RotationalAdamL2([w], l2=0.1, **TURN)
    wanted = theory.stationary("adamw", size=1, **TURN).rotation
    got = delivered(optimizer, w, steps=300) / wanted
    assert np.abs(got - 1).max() < 0.03
    plain, twin = matrix(), matrix()
    other = optim.RotationalAdamW([twin], **TURN)
    delivered(optim.RotationalAdamL2([plain], l2=5.0, **TURN), plain, steps=20)
    delivered(other, twin, steps=20)
    assert not torch.allclose(plain, twin)


NARROW: list[Any] = [
    (optim.RotationalAdamW, {"weight_decay": 0.1}),
    (optim.RotationalAdamW, {"weight_decay": 0.1, "reference": "paper"}),
    (optim.RotationalAdamW, {"weight_decay": 0.1, "granularity": 6}),
    (optim.RotationalLion, {"weight_decay": 0.1}),
    (optim.RotationalMuon, {"weight_decay": 0.1}),
    (optim.HyperballAdamW, {"weight_decay": 0.1, "granularity": "neuron"}),
]


@pytest.mark.parametrize("compiled", [None, True])
@pytest.mark.parametrize(("make", "options"), NARROW)
def test_rows_of_one_number_take_plain_steps(make: Any, options: dict[str, Any], compiled: bool | None) -> None:
    """They have no mean to take off, and with their norms kept would never move."""
    twins: dict[Any, Any] = {optim.RotationalLion: optim.Lion, optim.RotationalMuon: optim.Muon}
    w, v = (torch.nn.Parameter(torch.arange(-2.0, 4.0).reshape(6, 1)) for _ in range(2))
    start = w.detach().clone()
    center: dict[str, Any] = {} if make is optim.HyperballAdamW else {"center": True}
    scale: dict[str, Any] = {"scale": "none"} if make is optim.RotationalMuon else {}
    optimizer = make([w], lr=0.01, compile=compiled, **options, **center)
    assert torch.equal(w.detach(), start)
    plain = twins.get(make, optim.AdamW)([v], lr=0.01, weight_decay=0.1, **scale)
    for t in range(5):
        w.grad = torch.randn(6, 1, generator=torch.Generator().manual_seed(t))
        v.grad = w.grad.clone()
        optimizer.step()
        plain.step()
    torch.testing.assert_close(w, v, rtol=1e-6, atol=1e-7)
    assert not torch.equal(w.detach(), start)


def test_a_column_turns_as_a_whole() -> None:
    w = torch.nn.Parameter(torch.arange(-2.0, 4.0).reshape(6, 1))
    optimizer = optim.RotationalAdamW([w], lr=0.01, weight_decay=0.1, granularity="tensor", center=True)
    norm = w.detach().norm()
    assert abs(w.detach().mean()) < 1e-6
    w.grad = torch.randn(6, 1, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    torch.testing.assert_close(w.detach().norm(), norm)


def test_centring_leaves_rows_of_one_number_alone() -> None:
    w = torch.arange(-2.0, 4.0).reshape(6, 1)
    kept = w.clone()
    center_rows(w, "neuron")
    assert torch.equal(w, kept)
    assert torch.equal(centred(w), kept)


def test_hyperball_turns_each_tensor_by_lr() -> None:
    w = matrix()
    optimizer = optim.HyperballAdamW([w], lr=0.05)
    before = w.detach().double().clone()
    w.grad = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    after = w.detach().double()
    u = torch.sign(w.grad.double())
    x = before - 0.05 * u * before.norm() / u.norm()
    torch.testing.assert_close(after, x * before.norm() / x.norm(), rtol=1e-4, atol=1e-6)


def test_constraint_holds_the_norm_at_its_bound() -> None:
    w = matrix()
    optimizer = optim.AdamCPR([w], lr=0.05, bound="warm_start", warm_start=20, rate=0.1)
    generator = torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(400):
        w.grad = torch.randn(ROWS, COLUMNS, generator=generator)
        optimizer.step()
        sizes.append(w.detach().square().mean().item())
    bound = optimizer.state[w]["bound"].item()
    assert bound == pytest.approx(sizes[19], rel=1e-2)
    free = optim.Adam([twin := matrix()], lr=0.05)
    delivered(free, twin, steps=400)
    assert np.mean(sizes[-100:]) == pytest.approx(bound, rel=0.05)
    assert twin.detach().square().mean().item() > 1.1 * bound


def growing(w: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """Gradients that let weights grow for a while, and faster at first than later."""
    generator = torch.Generator().manual_seed(3)
    noise = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for _ in range(steps)]
    return [0.3 * x - torch.ones_like(w) * min(1.0, t / 60) for t, x in enumerate(noise)]


@pytest.mark.parametrize("bound", ["inflection", "warm_start", 0.02])
@pytest.mark.parametrize("foreach", [True, False])
def test_constraint_is_its_authors(bound: Any, foreach: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [0.05 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 8), (4, 3, 5))]
    params = [torch.nn.Parameter(w.clone()) for w in start]
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "bound": bound, "rate": 0.5}
    optimizer = optim.AdamCPR(params, warm_start=20, foreach=foreach, **options)
    grads = [growing(w, 200) for w in start]
    for t in range(200):
        for p, g in zip(params, grads, strict=True):
            p.grad = g[t].clone()
        optimizer.step()
    for p, w, g in zip(params, start, grads, strict=True):
        expected, kappa = references.adam_cpr(w.numpy(), np.stack([x.numpy() for x in g]), stretch=20, **options)
        assert kappa is not None
        assert optimizer.state[p]["bound"].item() == pytest.approx(kappa / p.numel(), rel=1e-10)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
        assert optimizer.state[p]["multiplier"].item() > 0


def test_inflection_is_looked_for_from_the_fourth_stretch() -> None:
    """Of norms 1, 2, 4, 7, 9, 10 at the ends of stretches: what slows before the fourth is not seen, nor is a halt."""

    def bound(norms: list[float]) -> float:
        w = torch.nn.Parameter(torch.full((4, 4), 0.01))
        optimizer = optim.AdamCPR([w], lr=1e-9, warm_start=500)
        w.grad = torch.zeros(4, 4)
        for norm in norms:
            for _ in range(500):
                with torch.no_grad():
                    w.fill_(norm)
                optimizer.step()
        return optimizer.state[w]["bound"].item()

    assert bound([1.0, 1.9, 1.99]) == math.inf
    assert bound([1.0, 2.0, 3.0, 4.0]) == pytest.approx(16.0, rel=1e-2)
    assert bound([1.0, 2.0, 3.0, 6.0, 7.0]) == pytest.approx(49.0, rel=1e-2)
    assert bound([1.0, 2.0, 3.0, 3.0]) == math.inf  # no growth


def test_constraint_takes_a_state_of_adam_for_what_it_is() -> None:
    """Stretches count from there: the first growth that is measured is none to compare with."""
    w = torch.nn.Parameter(torch.ones(4, 4))
    w.grad = torch.zeros(4, 4)
    adam = torch.optim.Adam([w], lr=1e-9)
    adam.step()
    state = adam.state_dict()
    state["state"][0]["step"] = torch.tensor(1000.0)
    optimizer = optim.AdamCPR([w], warm_start=10)
    optimizer.load_state_dict(state)
    for _ in range(30):
        with torch.no_grad():
            w.mul_(1.01)
        optimizer.step()
        assert optimizer.state[w]["bound"].item() == math.inf


def test_holding_a_bound_never_waits_for_the_device() -> None:
    class NoSync(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    group = optim.AdamCPR([w := matrix()], warm_start=1).groups[0]
    piece = Piece(w.detach(), {})
    for bound in ("inflection", "warm_start", 0.5):
        for t in range(1, 6):
            with NoSync():
                optim.Constrain().hold([piece], t, group_options(group, bound=bound))


def test_the_constraints_defaults_are_the_authors() -> None:
    assert [
        optim.AdamCPR([matrix()], bound=bound).param_groups[0]["warm_start"] for bound in ("inflection", "warm_start")
    ] == [200, 1000]


@pytest.mark.parametrize(
    ("make", "options", "rotation"),
    [
        (optim.RotationalAdamW, {"betas": (0.9, 0.999)}, math.sqrt(2 * 2e-5 * 0.1 / 1.9)),
        (optim.RotationalSGDM, {"momentum": 0.9}, math.sqrt(2 * 2e-5 / 1.9)),
        (optim.RotationalLion, {"betas": (0.9, 0.99)}, math.sqrt(math.pi * 2e-5 * (0.01 + 0.81 * 0.01 / 1.99))),
    ],
)
def test_small_step_rotation_is_re_table_1(make: Any, options: dict, rotation: float) -> None:
    w = matrix()
    optimizer = make([w], lr=1e-3, weight_decay=0.02, method="small_step", **options)
    got = delivered(optimizer, w, steps=100)
    assert got.mean() == pytest.approx(rotation, rel=0.02)


@pytest.mark.parametrize("make", [optim.RotationalSGDM, optim.RotationalAdamL2])
def test_dead_rows_do_not_drift(make: Any) -> None:
    """No gradient but L2, which lies along the weights: nothing is left to turn by."""
    w = matrix()
    start = w.detach().clone()
    optimizer = make([w], l2=5e-4, lr=0.1, weight_decay=0.01, **({"eps": 1e3} if "Adam" in make.__name__ else {}))
    for _ in range(100):
        w.grad = torch.zeros_like(w)
        optimizer.step()
    assert torch.nn.functional.cosine_similarity(start.double(), w.detach().double(), dim=1).min() > 1 - 1e-9


def test_huge_gradients_stay_finite() -> None:
    w = matrix()
    optimizer = optim.RotationalSGDM([w], **TURN)
    for size in (1.0, 1e25, 1.0):
        w.grad = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * size
        optimizer.step()
    assert torch.isfinite(w).all()
    assert torch.isfinite(optimizer.state[w]["row_square"]).all()


def test_weight_decay_that_a_schedule_takes_to_zero_is_said() -> None:
    w = matrix()
    optimizer = optim.RotationalAdamW([w], **TURN)
    delivered(optimizer, w, steps=2)
    optimizer.param_groups[0]["weight_decay"] = 0.0
    before = w.detach().clone()
    with pytest.raises(ValueError, match="weight_decay = 0: must be > 0"):
        optimizer.step()
    torch.testing.assert_close(w.detach(), before, rtol=0, atol=0)


def test_groups_of_vectors_need_no_decay_and_keep_their_kind_of_decay() -> None:
    bias, twin = (torch.nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2))
    optim.RotationalAdamW([{"params": [matrix()]}, {"params": [bias], "weight_decay": 0.0}], **TURN)
    options: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.5, "decay": "cautious"}
    rotational, plain = optim.RotationalAdamW([bias], **options), optim.AdamW([twin], **options)
    for t in range(5):
        bias.grad = torch.full((5,), float(t - 2))
        twin.grad = bias.grad.clone()
        rotational.step()
        plain.step()
    torch.testing.assert_close(bias.detach(), twin.detach())


def test_a_groups_own_angle_stays_its_own() -> None:
    a, b = matrix(), matrix()
    optimizer = optim.RotationalAdamW([{"params": [a], "angle": 0.3}, {"params": [b]}], angle=lambda t: 0.01)
    before = [p.detach().double().clone() for p in (a, b)]
    for p in (a, b):
        p.grad = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    turned = [
        torch.nn.functional.cosine_similarity(old, p.detach().double(), dim=1).acos().mean().item()
        for old, p in zip(before, (a, b), strict=True)
    ]
    assert turned == pytest.approx([0.3, 0.01], rel=0.01)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (optim.RotationalAdamW, {"granularity": 7}, "granularity = 7: must divide"),
        (optim.RotationalAdamW, {"granularity": True}, "granularity = True: must be one of"),
        (optim.RotationalAdamW, {"speeds": torch.ones(3)}, "speeds has 3 values: must be one for each of the 64 rows"),
        (optim.RotationalAdamW, {"speeds": [1.0] * 64}, "speeds: must be a one-dimensional tensor"),
        (optim.RotationalAdamW, {"norm": -1.0}, r"norm = -1\.0: must be a finite number > 0"),
        (optim.RotationalAdamW, {"angle": 3.0}, r"angle = 3\.0: must be a finite number in \[0, 1\.5\]"),
        (optim.RotationalAdamW, {"method": "fast"}, "method = 'fast': must be one of exact, small_step"),
        (optim.RotationalAdamW, {"reference": "book"}, "reference = 'book': must be one of paper"),
        (optim.AdamCPR, {"bound": "foo"}, "bound = 'foo': must be one of inflection, warm_start"),
        (optim.AdamCPR, {"warm_start": 0}, "warm_start = 0: must be a whole number ≥ 1"),
        (optim.AdamCPR, {"weight_decay": 0.1}, r"weight_decay = 0\.1: must be 0; the bound takes its place"),
        (optim.SGDM, {"momentum": 0.0, "nesterov": True}, "nesterov = True with momentum = 0"),
    ],
)
def test_bad_options_are_named_before_anything_changes(make: Any, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([matrix()], **options)
