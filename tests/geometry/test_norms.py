"""Every norm against its definition: ‖dualize(G)‖ = 1, ⟨G, dualize(G)⟩ = ‖G‖†, Hölder, and numerical maximisation."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.geometry.norm_cases import CASES, climb, inner, random

from equipoise import geometry as eg

every = pytest.mark.parametrize("name", CASES)


@every
@pytest.mark.parametrize("seed", range(3))
def test_dualize_attains_the_dual_norm(name: str, seed: int) -> None:
    norm, shape = CASES[name]
    g = random(shape, seed)
    t = norm.dualize(g)
    assert t.shape == g.shape
    assert norm.norm(t).item() == pytest.approx(1, abs=1e-12)
    assert inner(g, t) == pytest.approx(norm.dual(g).item(), rel=1e-12)


@every
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_hölder_and_the_triangle(name: str, seed: int) -> None:
    norm, shape = CASES[name]
    g, x, y = (random(shape, 3 * seed + i) for i in range(3))
    assert inner(g, x) <= (norm.dual(g) * norm.norm(x)).item() * (1 + 1e-12)
    assert norm.norm(x + y).item() <= (norm.norm(x) + norm.norm(y)).item() * (1 + 1e-12)
    assert norm.dual(x + y).item() <= (norm.dual(x) + norm.dual(y)).item() * (1 + 1e-12)


@every
def test_dual_norm_against_an_optimizer(name: str) -> None:
    norm, shape = CASES[name]
    g = random(shape, 5)
    found = climb(norm, g, starts=2, steps=1200)
    assert found <= norm.dual(g).item() * (1 + 1e-9)
    # Adam leaves norms with kinks a little short of the maximum.
    assert found == pytest.approx(norm.dual(g).item(), rel=0.03)


@every
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 7.0, 1e30])
def test_scale(name: str, scale: float) -> None:
    norm, shape = CASES[name]
    g = random(shape, 2)
    assert norm.norm(g * scale).item() == pytest.approx(norm.norm(g).item() * scale, rel=1e-12)
    assert norm.dual(g * -scale).item() == pytest.approx(norm.dual(g).item() * scale, rel=1e-12)
    torch.testing.assert_close(norm.dualize(g * scale), norm.dualize(g), rtol=0, atol=1e-10)
    torch.testing.assert_close(norm.dualize(-g), -norm.dualize(g), rtol=0, atol=1e-10)


@every
def test_batch_is_a_loop(name: str) -> None:
    norm, shape = CASES[name]
    g = random((2, 3, *shape), 4)
    for method in ("norm", "dual", "dualize"):
        call: Callable[[torch.Tensor], torch.Tensor] = getattr(norm, method)
        looped = torch.stack([torch.stack([call(x) for x in row]) for row in g])
        torch.testing.assert_close(call(g), looped, rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    norm, shape = CASES[name]
    g = random(shape, 6, dtype=dtype)
    eps = torch.finfo(dtype).eps
    for method in ("norm", "dual", "dualize"):
        given_dtype, exact = getattr(norm, method)(g), getattr(norm, method)(g.double())
        assert given_dtype.dtype == dtype
        # One rounding or two at the end, none on the way.
        torch.testing.assert_close(given_dtype.double(), exact, rtol=8 * eps, atol=8 * max(eps, 1e-7))


@every
def test_zero_dualizes_to_zero(name: str) -> None:
    norm, shape = CASES[name]
    zero = torch.zeros(2, *shape)
    zero[1] = random(shape, dtype=torch.float32)
    t = norm.dualize(zero)
    assert (t[0] == 0).all()
    assert norm.norm(t[1]).item() == pytest.approx(1, abs=1e-5)
    assert norm.norm(zero)[0] == 0
    assert norm.dual(zero)[0] == 0


@every
def test_nan_stays_in_its_place(name: str) -> None:
    norm, shape = CASES[name]
    g = random((2, *shape))
    g[0].view(-1)[0] = math.nan
    assert norm.norm(g).isnan().tolist() == [True, False]
    assert norm.dual(g).isnan().tolist() == [True, False]
    assert norm.dualize(g)[1].isfinite().all()


SMOOTH = [name for name in CASES if name not in ("heads, sum", "positions, sum")]


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gradient_of_the_dual_norm_is_dualize(name: str) -> None:
    norm, shape = CASES[name]
    g = random(shape, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(norm.dual(g), g)
    torch.testing.assert_close(gradient, norm.dualize(g.detach()), rtol=1e-8, atol=1e-8)


PROJECTED = [
    name
    for name in CASES
    if name not in {"l1.5", "l3", "l7.5", "l3 of a matrix", "l1.5->linf", "l4->linf", "l1->l1.5", "l1->l4"}
    and "sum" not in name
]


@pytest.mark.parametrize("name", PROJECTED)
def test_projection_is_the_nearest_point_of_the_ball(name: str) -> None:
    norm, shape = CASES[name]
    inside = random(shape, 1)
    inside = inside / norm.norm(inside) * 0.9
    torch.testing.assert_close(norm.project(inside), inside, rtol=1e-12, atol=1e-12)
    x = random(shape, 2)
    x = x / norm.norm(x) * 3
    p = norm.project(x)
    assert norm.norm(p).item() <= 1 + 1e-12
    # The nearest point of a convex set: ⟨x − p, y − p⟩ ≤ 0 for all y in it, and the worst y is dualize(x − p).
    assert norm.dual(x - p).item() - inner(x - p, p) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(PROJECTED)))
def test_projection_that_does_not_exist_says_so(name: str) -> None:
    norm, shape = CASES[name]
    with pytest.raises(NotImplementedError, match="no projection in closed form"):
        norm.project(random(shape))


@pytest.mark.parametrize(
    ("norm", "dual"),
    [(eg.Lp(p), eg.Lp(p / (p - 1))) for p in (1.5, 2, 3)]
    + [(eg.Lp(1), eg.Lp(math.inf)), (eg.Lp(math.inf), eg.Lp(1)), (eg.frobenius(), eg.frobenius())],
    ids=str,
)
def test_dual_of_the_dual(norm: eg.Lp, dual: eg.Lp) -> None:
    x = random((5, 6))
    torch.testing.assert_close(norm.dual(x), dual.norm(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(dual.dual(x), norm.norm(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["l1.5", "l2", "l3", "frobenius", "rms", "scaled", "spectral", "l1->l2"])
def test_step_minimises_its_bound(name: str) -> None:
    """Proposition 1 of B.2: −(‖g‖†/λ) dualize(g) minimises ⟨g, Δ⟩ + (λ/2)‖Δ‖²."""
    norm, shape = CASES[name]
    g, sharpness = random(shape, 9), 1.7

    def bound(delta: torch.Tensor) -> torch.Tensor:
        return (g * delta).sum() + sharpness / 2 * norm.norm(delta) ** 2

    claimed = bound(norm.step(g, sharpness)).item()
    assert claimed == pytest.approx(-(norm.dual(g).item() ** 2) / (2 * sharpness), rel=1e-12)
    delta = random(shape, 10).requires_grad_()
    optimizer = torch.optim.Adam([delta], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for _ in range(1000):
        optimizer.zero_grad()
        bound(delta).backward()
        optimizer.step()
        schedule.step()
    assert bound(delta).item() >= claimed * (1 + 1e-9) - 1e-12
    assert bound(delta).item() == pytest.approx(claimed, rel=5e-3)


def test_step_in_a_batch_takes_each_its_own_size() -> None:
    g = random((3, 4, 5))
    norm = eg.named("spectral")
    for i in range(3):
        torch.testing.assert_close(norm.step(g, 2.0)[i], norm.step(g[i], 2.0))


def test_norms_are_values() -> None:
    assert eg.Operator(1, "rms") == eg.Operator(1, "rms")
    assert len({eg.Lp(2), eg.Lp(2), eg.Lp(3)}) == 2
    assert repr(eg.Heads(eg.Lp(2, 2), 4)) == "Heads(base=Lp(p=2, dims=2), count=4, combine='max')"
    with pytest.raises(AttributeError):
        eg.Lp(2).p = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: eg.Lp(0.5), r"p = 0.5: must be a number in \[1, ∞\]"),
        (lambda: eg.Lp(math.nan), r"p = nan"),
        (lambda: eg.Lp("2"), r"p = '2'"),  # pyright: ignore
        (lambda: eg.Lp(2, dims=0), r"dims = 0: must be a whole number ≥ 1"),
        (lambda: eg.RMS(dims=-1), r"dims = -1"),
        (lambda: eg.Lp(2).norm(torch.ones(3, dtype=torch.int64)), r"torch.int64 .* floating"),
        (lambda: eg.frobenius().norm(torch.ones(3)), r"shape \(3,\): .* at least 2 dimensions"),
        (lambda: eg.Lp(2).norm([1.0]), r"x is \[1.0\]"),  # pyright: ignore
        (lambda: eg.Lp(2).step(torch.ones(3), 0), r"sharpness = 0: must be a finite number > 0"),
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
