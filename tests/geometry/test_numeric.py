"""Estimated norms against grids, known Hessians and closed forms."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.geometry.norm_cases import random

from equipoise import geometry as eg

INF = math.inf


def on_a_sphere(x: torch.Tensor, p: float, q: float) -> float:
    """The largest ‖Xt‖_q/‖t‖_p over a fine grid of directions, for two or three columns."""
    angle = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    if x.shape[1] == 2:
        t = torch.stack([angle.cos(), angle.sin()])
    else:
        a, b = angle[:, None], torch.linspace(0, math.pi, 1001, dtype=torch.float64)[None]
        t = torch.stack([(a.cos() * b.sin()), (a.sin() * b.sin()), b.cos().expand(2001, -1)]).reshape(3, -1)
    sizes = torch.linalg.vector_norm(x @ t, q, dim=0) / torch.linalg.vector_norm(t, p, dim=0)
    return sizes.max().item()


@pytest.mark.parametrize(("p", "q"), [(1.5, 3), (3, 1.5), (2, 1), (INF, 1), (INF, 2), (4, 4), (2, 4), (1, 3), (3, INF)])
@pytest.mark.parametrize("shape", [(4, 2), (3, 3)])
def test_induced_norm_against_a_grid(p: float, q: float, shape: tuple[int, int]) -> None:
    x = random(shape, 2)
    found = eg.induced_norm(x, p, q).item()
    grid = on_a_sphere(x, p, q)
    # The grid misses the maximum by the square of its spacing; at a kink of ℓ∞, by the spacing.
    assert grid <= found * (1 + 1e-9)
    assert found == pytest.approx(grid, rel=3e-3 if INF in (p, q) else 1e-5)


def test_induced_norm_in_a_batch() -> None:
    x = random((2, 3, 4, 5))
    both = eg.induced_norm(x, 3, 1.5)
    assert both.shape == (2, 3)
    torch.testing.assert_close(both[1, 2], eg.induced_norm(x[1, 2], 3, 1.5), rtol=1e-6, atol=0)
    assert eg.induced_norm(x.bfloat16(), 3, 1.5).dtype == torch.bfloat16
    assert eg.induced_norm(torch.zeros(3, 4), 2, 2).item() == 0


@pytest.mark.parametrize("name", ["l2", "l1", "l1.5", "linf"])
def test_sharpness_of_a_quadratic(name: str) -> None:
    half = random((5, 5), 1)
    hessian = half @ half.T
    w = random((5,), 2).requires_grad_()
    norm = eg.named(name)
    assert isinstance(norm, eg.Lp)
    found = eg.sharpness(lambda: w @ hessian @ w / 2, w, norm, iterations=500, restarts=8)
    p = norm.p
    q = INF if p == 1 else 1.0 if p == INF else p / (p - 1)
    assert found == pytest.approx(eg.induced_norm(hessian, p, q, restarts=200).item(), rel=1e-6)


def test_sharpness_bounds_the_change_of_the_gradient() -> None:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(6, 8).double(), torch.nn.Linear(8, 1).double()
    inputs, targets = random((32, 6)), random((32, 1), 1)
    weights = [first.weight, last.weight]
    norm = eg.MaxOver([eg.named("spectral"), eg.named("rms->rms")], [1.0, 0.5])

    def loss() -> torch.Tensor:
        return torch.nn.functional.mse_loss(last(first(inputs).tanh()), targets)

    sharp = eg.sharpness(loss, weights, norm, iterations=100, restarts=4)
    before = torch.autograd.grad(loss(), weights)
    ratios = []
    for seed in range(50):
        noise = [random(tuple(w.shape), 10 * seed + i) for i, w in enumerate(weights)]
        direction = norm.dualize(noise)
        with torch.no_grad():
            for w, d in zip(weights, direction, strict=True):
                w += 1e-5 * d
        after = torch.autograd.grad(loss(), weights)
        with torch.no_grad():
            for w, d in zip(weights, direction, strict=True):
                w -= 1e-5 * d
        ratios.append(norm.dual([a - b for a, b in zip(after, before, strict=True)]).item() / 1e-5)
    assert max(ratios) <= sharp * (1 + 1e-3)
    assert max(ratios) > 0.1 * sharp


def test_sharpness_of_a_line_is_zero() -> None:
    w = {"a": torch.ones(3, requires_grad=True), "b": torch.ones(2, requires_grad=True)}
    norm = eg.SumOver({"a": eg.Lp(2), "b": eg.Lp(1)})
    assert eg.sharpness(lambda: 2 * w["a"].sum() - w["b"].sum(), w, norm) == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: eg.induced_norm(torch.ones(2, 2), 0.5, 2), r"p = 0.5"),
        (lambda: eg.induced_norm(torch.ones(2, 2), 2, 2, restarts=0), r"restarts = 0"),
        (lambda: eg.induced_norm(torch.ones(2), 2, 2), r"at least 2 dimensions"),
        (lambda: eg.sharpness(lambda: torch.ones(()), torch.ones(2), eg.Lp(2)), r"closure\(\) = .* depends on params"),
        (lambda: eg.sharpness(lambda: torch.ones(()), [], eg.Lp(2)), r"params = \[\]"),
        (lambda: eg.sharpness(lambda: torch.ones(()), torch.ones(2), "l2"), r"norm = 'l2': must be a Norm"),  # pyright: ignore
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
