"""Norms of slices and layers against loops written out, and the modular step against the closed form of appendix C."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.geometry.norm_cases import inner, random

from equipoise import geometry as eg

SPECTRAL, SIGN, EMBEDDING = eg.named("spectral"), eg.named("sign"), eg.named("embedding")
NORMS: list[eg.Norm] = [SPECTRAL, EMBEDDING, eg.RMS()]
SCALES = [1.0, 2.5, 0.4]
SHAPES = [(4, 3), (3, 6), (5,)]


def layers(seed: int = 0) -> list[torch.Tensor]:
    return [random(shape, seed + i) for i, shape in enumerate(SHAPES)]


def test_kernels_by_hand() -> None:
    k = random((4, 3, 2, 5))
    matrices = [k[:, :, i, j] for i in range(2) for j in range(5)]
    each = torch.stack([SPECTRAL.norm(m) for m in matrices])
    torch.testing.assert_close(eg.Positions(SPECTRAL).norm(k), each.max())
    torch.testing.assert_close(eg.Positions(SPECTRAL, combine="sum").norm(k), each.sum())
    t = eg.Positions(SPECTRAL).dualize(k)
    torch.testing.assert_close(t[:, :, 1, 3], SPECTRAL.dualize(k[:, :, 1, 3]))
    torch.testing.assert_close(eg.Flat(SPECTRAL).norm(k), torch.linalg.matrix_norm(k.reshape(4, 30), 2))


def test_heads_by_hand() -> None:
    w = random((6, 4))
    norm = eg.Heads(SPECTRAL, 3)
    torch.testing.assert_close(norm.norm(w), max(torch.linalg.matrix_norm(w[i : i + 2], 2) for i in (0, 2, 4)))
    torch.testing.assert_close(norm.dualize(w)[2:4], SPECTRAL.dualize(w[2:4]))
    moved = eg.Heads(SPECTRAL, 3, "sum").dualize(w)
    assert sum(bool(moved[i : i + 2].any()) for i in (0, 2, 4)) == 1


@pytest.mark.parametrize("kind", [eg.MaxOver, eg.SumOver])
@pytest.mark.parametrize("form", ["list", "dict"])
def test_layers_together(kind: type[eg.MaxOver] | type[eg.SumOver], form: str) -> None:
    g, x = layers(), layers(10)
    if form == "dict":
        names = ("a", "b", "c")
        norm = kind(dict(zip(names, NORMS, strict=True)), dict(zip(names, SCALES, strict=True)))
        t = norm.dualize(dict(zip(names, g, strict=True)))
        assert list(t) == ["a", "b", "c"]
        given_g: Any = dict(zip(names, g, strict=True))
        given_x: Any = dict(zip(names, x, strict=True))
        flat_t = list(t.values())
    else:
        norm = kind(NORMS, SCALES)
        given_g, given_x, t = g, x, norm.dualize(g)
        flat_t = t
    assert norm.norm(t).item() == pytest.approx(1, abs=1e-12)
    reached = sum(inner(a, b) for a, b in zip(g, flat_t, strict=True))
    assert reached == pytest.approx(norm.dual(given_g).item(), rel=1e-12)
    assert sum(inner(a, b) for a, b in zip(g, x, strict=True)) <= (norm.dual(given_g) * norm.norm(given_x)).item()
    sizes = torch.stack([s * n.norm(w) for n, s, w in zip(NORMS, SCALES, x, strict=True)])
    assert norm.norm(given_x).item() == pytest.approx((sizes.max() if kind is eg.MaxOver else sizes.sum()).item())


def test_the_modular_step_is_the_closed_form() -> None:
    """Appendix C: ΔW_l = −(η/s_l) dualize_l(G_l), η = (1/λ) Σ ‖G_k‖_k†/s_k, here with every map written out."""
    g, sharpness = layers(), 3.0
    u, s, vt = torch.linalg.svd(g[0], full_matrices=False)
    duals = [s.sum(), 3**0.5 * g[1].norm(dim=0).sum(), 5**0.5 * g[2].norm()]
    directions = [u @ vt, g[1] / g[1].square().mean(0).sqrt(), g[2] / g[2].square().mean().sqrt()]
    eta = sum(d / s for d, s in zip(duals, SCALES, strict=True)) / sharpness
    step = eg.MaxOver(NORMS, SCALES).step(g, sharpness)
    for made, direction, scale in zip(step, directions, SCALES, strict=True):
        torch.testing.assert_close(made, -eta / scale * direction, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [eg.MaxOver, eg.SumOver])
def test_no_step_is_better(kind: type[eg.MaxOver] | type[eg.SumOver]) -> None:
    g, sharpness = layers(), 3.0
    norm = kind(NORMS, SCALES)

    def bound(delta: list[torch.Tensor]) -> torch.Tensor:
        first = torch.stack([(a * b).sum() for a, b in zip(g, delta, strict=True)]).sum()
        return first + sharpness / 2 * norm.norm(delta) ** 2

    claimed = bound(norm.step(g, sharpness)).item()
    delta = [w.requires_grad_() for w in layers(20)]
    optimizer = torch.optim.Adam(delta, lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
    for _ in range(3000):
        optimizer.zero_grad()
        bound(delta).backward()
        optimizer.step()
        schedule.step()
    assert bound(delta).item() >= claimed * (1 + 1e-9)
    assert bound(delta).item() == pytest.approx(claimed, rel=0.02)


def test_every_layer_into_its_ball() -> None:
    x = [10 * w for w in layers()]
    norm = eg.MaxOver(NORMS, SCALES)
    p = norm.project(x)
    assert norm.norm(p).item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(p[2], x[2] / x[2].square().mean().sqrt() / SCALES[2])
    with pytest.raises(NotImplementedError, match="SumOver"):
        eg.SumOver(NORMS).project(x)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: eg.Scaled(SPECTRAL, 0), r"scale = 0: must be a finite number > 0"),
        (lambda: eg.Scaled("spectral", 1), r"base = 'spectral': must be a Norm"),  # pyright: ignore
        (lambda: eg.Flat(SPECTRAL).norm(torch.ones(2, 3, 4)), r"at least 4 dimensions"),
        (lambda: eg.Flat(SPECTRAL, kernel_dims=0), r"kernel_dims = 0"),
        (lambda: eg.Positions(SPECTRAL, combine="mean"), r"combine = 'mean': must be one of max, sum"),
        (lambda: eg.Heads(SPECTRAL, 0), r"count = 0"),
        (lambda: eg.Heads(SPECTRAL, 4).norm(torch.ones(6, 4)), r"count = 4: must divide the 6 rows"),
        (lambda: eg.MaxOver([]), r"norms = \[\]: must have at least one"),
        (lambda: eg.MaxOver([SPECTRAL, "sign"]), r"norms\[1\] = 'sign': must be a Norm"),
        (lambda: eg.MaxOver(NORMS, [1.0]), r"scales = \[1.0\]: must be one number for each of the 3"),
        (lambda: eg.MaxOver(NORMS, [1, 2, -1]), r"scales\[2\] = -1"),
        (lambda: eg.MaxOver({"a": SIGN}, {"b": 1}), r"must be a dict with the keys of norms, a"),
        (lambda: eg.SumOver(NORMS).norm(layers()[:2]), r"x must be a list of 3 tensors"),
        (lambda: eg.SumOver({"a": SIGN}).norm({"b": torch.ones(2, 2)}), r"x must be a dict with the keys a"),
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
