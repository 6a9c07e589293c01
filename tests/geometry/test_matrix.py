"""Operator norms against the table of closed forms, and against the definition by climbing."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.geometry.norm_cases import random

from equipoise import geometry as eg

INF = math.inf
W = random((5, 4), 3)
U, S, VT = torch.linalg.svd(W, full_matrices=False)


@pytest.mark.parametrize(
    ("norm", "value", "dual", "dualized"),
    [
        (eg.Operator(1, INF), W.abs().max(), W.abs().sum(), W.sign()),
        (eg.Operator(2, INF), W.norm(dim=1).max(), W.norm(dim=1).sum(), W / W.norm(dim=1, keepdim=True)),
        (eg.Operator(1, 2), W.norm(dim=0).max(), W.norm(dim=0).sum(), W / W.norm(dim=0)),
        (
            eg.Operator(1, "rms"),
            W.square().mean(0).sqrt().max(),
            math.sqrt(5) * W.norm(dim=0).sum(),
            W / W.square().mean(0).sqrt(),
        ),
        (eg.Operator(INF, INF), W.abs().sum(1).max(), W.abs().amax(1).sum(), None),
        (eg.Operator(1, 1), W.abs().sum(0).max(), W.abs().amax(0).sum(), None),
        (eg.Operator(2, 2), S[0], S.sum(), U @ VT),
        (eg.Operator("rms", "rms"), math.sqrt(4 / 5) * S[0], math.sqrt(5 / 4) * S.sum(), math.sqrt(5 / 4) * U @ VT),
    ],
    ids=str,
)
def test_table(norm: eg.Norm, value: torch.Tensor, dual: torch.Tensor, dualized: torch.Tensor | None) -> None:
    torch.testing.assert_close(norm.norm(W), value, rtol=1e-12, atol=0)
    torch.testing.assert_close(norm.dual(W), dual, rtol=1e-12, atol=0)
    if dualized is None:
        t = norm.dualize(W)
        assert sorted(t.abs().unique().tolist()) == [0, 1]
        assert (t != 0).sum() == (5 if norm == eg.Operator(INF, INF) else 4)
    else:
        torch.testing.assert_close(norm.dualize(W), dualized, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q"), [(1, INF), (1.5, INF), (2, INF), (INF, INF), (1, 1), (1, 1.5), (1, 2), (1, 4), (2, 2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_against_climbing(p: float, q: float, seed: int) -> None:
    x = random((2, 5, 4), seed)
    torch.testing.assert_close(eg.Operator(p, q).norm(x), eg.induced_norm(x, p, q), rtol=1e-7, atol=0)


def test_steps_dualize_as_muon_does() -> None:
    g = random((32, 48), dtype=torch.float32)
    quick, exact = eg.Operator("rms", "rms", steps=6), eg.Operator("rms", "rms")
    t = quick.dualize(g)
    assert quick.norm(t).item() == pytest.approx(1, abs=0.02)
    assert (t - exact.dualize(g)).abs().max() < 0.02
    assert (t - exact.dualize(g)).abs().max() > 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: eg.Operator(2, 1), r"p = 2, q = 1: a closed form needs .* induced_norm"),
        (lambda: eg.Operator(3, "rms"), r"p = 3, q = 'rms'"),
        (lambda: eg.Operator("RMS", 2), r"p = 'RMS': must be one of rms"),
        (lambda: eg.Operator(0, 2), r"p = 0: must be a number"),
        (lambda: eg.Operator(2, 2, steps=0), r"steps = 0"),
        (lambda: eg.Operator(1, 2, steps=4), r"steps = 4: only ℓ2→ℓ2"),
        (lambda: eg.Operator(2, 2).norm(torch.ones(4)), r"at least 2 dimensions"),
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
