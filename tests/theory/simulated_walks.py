"""The oracle: optimizers as their papers write them, driven by a simulated random walk in float64.

Nothing here knows the theory. A walk is K neurons of C weights (or K matrices), each scale invariant: its gradient
is Gaussian noise, orthogonal to the weight and of size g̃/‖w‖, as any loss with L(cw) = L(w) has it ([kosson2024] Eq.
1, 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def polar(x: np.ndarray) -> np.ndarray:
    """UVᵀ of every matrix in a batch, by singular value decomposition."""
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return u @ vt


@dataclass
class Walk:
    """What a simulated walk measured: one value a step, averaged over the neurons."""

    norm: np.ndarray
    rotation: np.ndarray
    update: np.ndarray


class Direction:
    """Turns the t-th gradient (plus coupled L2) into the update direction u of one optimizer."""

    def __init__(self, name: str, *, beta1: float, beta2: float, nesterov: bool, bias_correction: bool):
        self.name, self.b1, self.b2 = name, beta1, beta2
        self.nesterov, self.correct = nesterov, bias_correction
        self.m: np.ndarray | float = 0.0
        self.v: np.ndarray | float = 0.0
        self.t = 0

    def __call__(self, g: np.ndarray) -> np.ndarray:
        self.t += 1
        b1, b2, t = self.b1, self.b2, self.t
        c1, c2 = (1 - b1**t, 1 - b2**t) if self.correct else (1.0, 1.0)
        match self.name:
            case "sgdm":
                self.m = b1 * self.m + g
                return g + b1 * self.m if self.nesterov else self.m
            case "ngd":
                return g / np.linalg.norm(g, axis=-1, keepdims=True)
            case "rmsprop":
                self.v = b2 * self.v + (1 - b2) * g * g
                return g / np.sqrt(self.v / c2)
            case "adam" | "adamw" | "adam_l2":
                self.m = b1 * self.m + (1 - b1) * g
                self.v = b2 * self.v + (1 - b2) * g * g
                return (self.m / c1) / np.sqrt(self.v / c2)
            case "adam_nested":
                self.v = b2 * self.v + (1 - b2) * g * g
                self.m = b1 * self.m + (1 - b1) * g / np.sqrt(self.v / c2)
                return self.m / c1
            case "signsgdm":
                self.m = b1 * self.m + (1 - b1) * g
                return np.sign(self.m)
            case "lion":
                u = np.sign(b1 * self.m + (1 - b1) * g)
                self.m = b2 * self.m + (1 - b2) * g
                return u
            case "muon":
                self.m = b1 * self.m + (1 - b1) * g
                return polar(b1 * self.m + (1 - b1) * g if self.nesterov else self.m)
        raise ValueError(self.name)


def simulate(
    name: str,
    *,
    lr: np.ndarray,
    weight_decay: np.ndarray | float,
    shape: tuple[int, ...],
    init_norm: float,
    betas: tuple[float, float] = (0.9, 0.999),
    nesterov: bool = False,
    decay: str = "lr",
    coupled: bool = False,
    grad_norm: float = 1.0,
    bias_correction: bool = True,
    rows: int = 8,
    seed: int = 0,
    keep: Callable[[int], bool] = lambda t: True,
) -> Walk:
    """Run one optimizer over `rows` independent scale-invariant tensors of `shape`."""
    rng = np.random.default_rng(seed)
    steps = len(lr)
    wd = np.broadcast_to(np.asarray(weight_decay, float), (steps,))
    axes = tuple(range(1, len(shape) + 1))
    size = int(np.prod(shape))

    def norm(x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(x * x, axis=axes, keepdims=True))

    w = rng.standard_normal((rows, *shape))
    w *= init_norm / norm(w)
    direction = Direction(name, beta1=betas[0], beta2=betas[1], nesterov=nesterov, bias_correction=bias_correction)
    # The same filter without the coupled term, for the gradient's own part of the update.
    out = Walk(*(np.full(steps, np.nan) for _ in range(3)))
    lr_max = lr.max()
    wn = norm(w)
    for t in range(steps):
        g = rng.standard_normal((rows, *shape), dtype=np.float32).astype(np.float64)
        g -= np.sum(g * w, axis=axes, keepdims=True) / wn**2 * w
        g *= grad_norm / np.sqrt(size) / wn
        u = direction(g + wd[t] * w if coupled else g)
        match "none" if coupled else decay:
            case "none":
                kept = w
            case "lr":
                kept = (1 - lr[t] * wd[t]) * w
            case "independent":
                kept = (1 - wd[t]) * w
            case "corrected":
                kept = (1 - wd[t] * lr[t] ** 2 / lr_max) * w
            case "cautious":
                kept = w - lr[t] * wd[t] * w * (u * w >= 0)
            case _:
                raise ValueError(decay)
        new = kept - lr[t] * u
        nn = norm(new)
        if keep(t):
            delta = new - w
            radial = np.sum(delta * w, axis=axes, keepdims=True) / wn
            theta = np.arctan2(np.sqrt(np.maximum(norm(delta) ** 2 - radial**2, 0)), wn + radial)
            out.norm[t] = np.sqrt(np.mean(nn**2))
            out.rotation[t] = np.mean(theta)
            out.update[t] = lr[t] * np.sqrt(np.mean(norm(u) ** 2))
        w, wn = new, nn
    return out
