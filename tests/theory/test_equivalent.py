"""Equivalent settings against random walks that are simulated step by step in float64."""

import numpy as np
import pytest

from equipoise.theory import Dynamics, equivalent
from equipoise.theory.equivalent import decay_for

ROWS, COLUMNS, STACK = 8, 8, 64
LR, DECAY, STEPS, LAG = 1e-2, 0.2, 2000, 500
"""lr·wd = 0.002, and a lag of a timescale, which is longer than any momentum."""

ADAMW = Dynamics("adamw", betas=(0.9, 0.999))
OTHERS = {
    "lion": Dynamics("lion"),
    "signsgdm": Dynamics("signsgdm"),
    "muon": Dynamics("muon", betas=(0.95, 0.999), nesterov=True),
    "ngd": Dynamics("ngd"),
    "adamw": Dynamics("adamw", betas=(0.8, 0.99)),
}


def walk(dynamics: Dynamics, lr: float, decay: float) -> tuple[float, float]:
    """Mean norm in equilibrium, and the mean cosine between weights a lag apart, over a stack of matrices."""
    rng = np.random.default_rng(0)
    (b1, b2), name = dynamics.betas, dynamics.optimizer
    norm = dynamics.stationary((ROWS, COLUMNS), lr=lr, weight_decay=decay).norm
    w = rng.normal(size=(STACK, ROWS, COLUMNS)) * norm / np.sqrt(ROWS * COLUMNS)
    m, v = np.zeros_like(w), np.ones_like(w)
    norms, kept, cosines = [], [], []
    for t in range(STEPS):
        g = rng.normal(size=w.shape)
        match name:
            case "adamw":
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                u = m / np.sqrt(v)
            case "lion":
                u, m = np.sign(b1 * m + (1 - b1) * g), b2 * m + (1 - b2) * g
            case "signsgdm":
                m = b1 * m + (1 - b1) * g
                u = np.sign(m)
            case "ngd":
                u = g / np.linalg.norm(g, axis=(1, 2), keepdims=True)
            case _:
                m = b1 * m + (1 - b1) * g
                left, _, right = np.linalg.svd(b1 * m + (1 - b1) * g, full_matrices=False)
                u = left @ right
        w = (1 - lr * decay) * w - lr * u
        if t >= 500:
            kept.append(w)
            norms.append(np.sqrt((w**2).sum((1, 2)).mean()))
    for a, b in zip(kept, kept[LAG:], strict=False):
        cosines.append((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
    return float(np.mean(norms)), float(np.mean(cosines))


@pytest.mark.parametrize("name", OTHERS)
def test_norm_and_rotation_over_a_timescale_are_the_same_in_a_simulated_walk(name: str) -> None:
    other = OTHERS[name]
    lr, decay = equivalent(ADAMW, other, (ROWS, COLUMNS), lr=LR, weight_decay=DECAY)
    assert lr * decay == pytest.approx(LR * DECAY)
    norm, cosine = walk(ADAMW, LR, DECAY)
    other_norm, other_cosine = walk(other, lr, decay)
    assert other_norm == pytest.approx(norm, rel=0.03)
    # Lion's momentum smooths 100 of these 500 steps.
    assert np.arccos(other_cosine) == pytest.approx(np.arccos(cosine), rel=0.12 if name == "lion" else 0.04)


def test_of_sgd_the_norm_follows_the_root_of_lr() -> None:
    sgd = Dynamics("sgdm")
    lr, decay = equivalent(ADAMW, sgd, 256, lr=1e-3, weight_decay=0.1, grad_norm=3.0)
    wanted = ADAMW.stationary(256, lr=1e-3, weight_decay=0.1).norm
    assert sgd.stationary(256, lr=lr, weight_decay=decay, grad_norm=3.0).norm == pytest.approx(wanted, rel=1e-9)
    # Its L2 goes through momentum: with decay alone, w shrinks by that share a step in the long run.
    w, m = 1.0, 0.0
    for _ in range(2000):
        m = 0.9 * m + decay * w
        w -= lr * m
    before = w
    for _ in range(1000):
        m = 0.9 * m + decay * w
        w -= lr * m
    assert (w / before) ** (1 / 1000) == pytest.approx(1 - 1e-4, abs=2e-7)


def test_there_and_back_is_where_one_began() -> None:
    for other in OTHERS.values():
        there = equivalent(ADAMW, other, (64, 32), lr=3e-3, weight_decay=0.1)
        back = equivalent(other, ADAMW, (64, 32), lr=there[0], weight_decay=there[1])
        assert back == pytest.approx((3e-3, 0.1), rel=1e-9)


def test_without_decay_norms_grow_alike() -> None:
    lion = Dynamics("lion")
    lr, decay = equivalent(ADAMW, lion, 512, lr=1e-3, weight_decay=0.0)
    assert decay == 0.0
    known = {"weight_decay": 0.0, "steps": 4000, "init_norm": 0.1, "scale_invariant": False}
    grown = [d.forecast(512, lr=x, **known).norm[-1] for d, x in ((ADAMW, 1e-3), (lion, lr))]
    assert grown[1] == pytest.approx(grown[0], rel=0.03), "Lion needs 100 steps to begin"


def test_each_kind_of_decay_takes_the_same_share() -> None:
    for kind in ("lr", "independent"):
        d = Dynamics("adamw", decay=kind)
        assert d.decay_share(3e-3, decay_for(d, 3e-3, 1e-4)) == pytest.approx(1e-4)
    sgd = Dynamics("sgdm", betas=(0.95, 0.0))
    assert sgd.decay_share(0.1, decay_for(sgd, 0.1, 1e-3)) == pytest.approx(1e-3)


@pytest.mark.parametrize("wrong", [Dynamics("adam_l2"), Dynamics(move="rotate"), Dynamics(decay="cautious")])
def test_what_has_no_share_or_no_free_norm_is_refused(wrong: Dynamics) -> None:
    with pytest.raises(ValueError, match="must be an optimizer that theory knows"):
        equivalent(ADAMW, wrong, 64, lr=1e-3, weight_decay=0.1)
    with pytest.raises(ValueError, match="must take less than the whole weight"):
        equivalent(ADAMW, ADAMW, 64, lr=1.0, weight_decay=2.0)
