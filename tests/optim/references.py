"""The papers' algorithms written literally in numpy, one weight array at a time: what optimizers are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


def sgdm(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float = 0.0, l2: float = 0.0,
         nesterov: bool = False) -> Array:  # fmt: skip
    m = np.zeros_like(w)
    for g in grads:
        g = g + l2 * w
        m = momentum * m + g
        u = g + momentum * m if nesterov else m
        w = w - lr * weight_decay * w - lr * u
    return w


def rmsprop(w: Array, grads: Array, *, lr: float, alpha: float, eps: float, weight_decay: float = 0.0) -> Array:
    v = np.zeros_like(w)
    for g in grads:
        v = alpha * v + (1 - alpha) * g**2
        w = w - lr * weight_decay * w - lr * g / (np.sqrt(v) + eps)
    return w


def adam(w: Array, grads: Array, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0,
         l2: float = 0.0, zero_init: bool = True, bias_correction: bool = True, nested: bool = False,
         decay: str = "lr", lr_max: float | None = None) -> Array:  # fmt: skip
    b1, b2 = betas
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, start=1):
        g = g + l2 * w
        if t == 1 and not zero_init:
            m, v = (np.sign(g) if nested else g.copy()), g**2
        v = b2 * v + (1 - b2) * g**2
        v_hat = v / (1 - b2**t) if bias_correction else v
        m = b1 * m + (1 - b1) * (g / (np.sqrt(v_hat) + eps) if nested else g)
        m_hat = m / (1 - b1**t) if bias_correction else m
        u = m_hat if nested else m_hat / (np.sqrt(v_hat) + eps)
        lost = {
            "lr": lr * weight_decay,
            "independent": weight_decay,
            "corrected": weight_decay * lr**2 / (lr_max or lr),
            "cautious": lr * weight_decay * (u * w >= 0),
        }[decay]
        w = w - lost * w - lr * u
    return w


def signsgdm(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float = 0.0) -> Array:
    m = np.zeros_like(w)
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        w = w - lr * weight_decay * w - lr * np.sign(m)
    return w


def lion(w: Array, grads: Array, *, lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> Array:
    m = np.zeros_like(w)
    for g in grads:
        u = np.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
        w = w - lr * (u + weight_decay * w)
    return w


def normalized(w: Array, grads: Array, *, lr: float, weight_decay: float = 0.0, granularity: str = "tensor") -> Array:
    for g in grads:
        axes = tuple(range(1, g.ndim)) if granularity == "neuron" else None
        size = np.sqrt(np.sum(g**2, axis=axes, keepdims=True))
        w = w - lr * weight_decay * w - lr * g / size
    return w


def algorithm_1(w: Array, grads: Array, *, direction: Callable[[], Callable[[Array, int], Array]], angle: float,
                track: float = 0.99, eps: float = 1e-8, center: bool = False) -> Array:  # fmt: skip
    """[kosson2024] Algorithm 1, line by line, for a matrix whose rows are neurons."""
    inner = direction()
    nu = np.zeros((len(w), 1))
    n = np.linalg.norm(w, axis=1, keepdims=True)
    for t, g in enumerate(grads, start=1):
        step = -inner(g, t)
        step = step - np.sum(step * w, axis=1, keepdims=True) / np.sum(w * w, axis=1, keepdims=True) * w
        nu = track * nu + (1 - track) * np.sum(step**2, axis=1, keepdims=True)
        w = w + angle * n * step / np.sqrt(nu / (1 - track**t) + eps)
        if center:
            w = w - w.mean(axis=1, keepdims=True)
        w = n * w / np.linalg.norm(w, axis=1, keepdims=True)
    return w


def adam_direction(betas: tuple[float, float], eps: float) -> Callable[[], Callable[[Array, int], Array]]:
    def start() -> Callable[[Array, int], Array]:
        state: dict[str, Any] = {"m": 0.0, "v": 0.0}

        def u(g: Array, t: int) -> Array:
            state["m"] = betas[0] * state["m"] + (1 - betas[0]) * g
            state["v"] = betas[1] * state["v"] + (1 - betas[1]) * g**2
            return state["m"] / (1 - betas[0] ** t) / (np.sqrt(state["v"] / (1 - betas[1] ** t)) + eps)

        return u

    return start


def even_rows(w: Array, grads: Array, *, direction: Callable[[], Callable[[Array, int], Array]], lr: float,
              weight_decay: float, track: float = 0.9) -> Array:  # fmt: skip
    """A plain step of each row, whose angles are then made the same; quiet rows turn by less, as in every rotation."""
    inner = direction()
    largest = np.zeros(len(w))
    for t, g in enumerate(grads, start=1):
        plain = w - lr * weight_decay * w - lr * inner(g, t)
        heads = [row / np.linalg.norm(row) for row in w]
        along = np.array([x @ h for x, h in zip(plain, heads, strict=True)])
        rest = [x - a * h for x, a, h in zip(plain, along, heads, strict=True)]
        across = np.array([np.linalg.norm(r) for r in rest])
        angle = np.arctan2(np.linalg.norm(across), np.linalg.norm(along))
        largest = np.maximum(across**2, track * largest)
        size = np.maximum(across, np.sqrt(largest) / 10)
        turned = [np.cos(angle) * h + np.sin(angle) * r / s for h, r, s in zip(heads, rest, size, strict=True)]
        w = np.stack([np.linalg.norm(x) * y / np.linalg.norm(y) for x, y in zip(plain, turned, strict=True)])
    return w


def adam_cpr(w: Array, grads: Array, *, lr: float, betas: tuple[float, float], eps: float, bound: str | float,
             rate: float, stretch: int) -> tuple[Array, float | None]:  # fmt: skip
    """Constrained Parameter Regularization in its authors' words: R is the sum of squares, and μ is over the size."""
    u, mu, lam = adam_direction(betas, eps)(), rate / w.size, 0.0
    kappa = None if isinstance(bound, str) else bound * w.size
    smooth = earlier = growth_before = 0.0
    for t, g in enumerate(grads, start=1):
        w = w - lr * u(g, t)
        if kappa is not None:
            lam = max(0.0, lam + mu * (np.sum(w**2) - kappa))
            w = w - 2 * lam * w
        elif bound == "warm_start" and t == stretch:
            kappa = np.sum(w**2)
        elif bound == "inflection":
            smooth = 0.99 * smooth + 0.01 * np.linalg.norm(w) if t >= stretch else np.linalg.norm(w)
            if t in range(2 * stretch, len(grads) + 1, stretch):
                growth = (smooth - earlier) / smooth
                if t > 3 * stretch and growth_before > growth > 0.01:
                    kappa = np.sum(w**2)
                earlier = smooth
                if t > 2 * stretch:
                    growth_before = growth
    return w, kappa


def lamb(w: Array, grads: Array, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> Array:
    u = adam_direction(betas, eps)()
    for t, g in enumerate(grads, start=1):
        r = u(g, t) + weight_decay * w
        w = w - lr * np.linalg.norm(w) / np.linalg.norm(r) * r
    return w


def lars(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float, trust: float) -> Array:
    v = np.zeros_like(w)
    for g in grads:
        local = trust * np.linalg.norm(w) / (np.linalg.norm(g) + weight_decay * np.linalg.norm(w))
        v = momentum * v + lr * local * (g + weight_decay * w)
        w = w - v
    return w


def clipped_sgdm(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float, clip: float) -> Array:
    m = np.zeros_like(w)
    axes = tuple(range(1, w.ndim)) if w.ndim > 1 else None
    for g in grads:
        size = np.sqrt(np.sum(g**2, axis=axes, keepdims=True))
        most = clip * np.maximum(np.sqrt(np.sum(w**2, axis=axes, keepdims=True)), 1e-3)
        g = np.where(size > most, g * most / size, g)
        m = momentum * m + g
        w = w - lr * weight_decay * w - lr * (g + momentum * m)
    return w


def polar(m: Array) -> Array:
    left, _, right = np.linalg.svd(m, full_matrices=False)
    return left @ right


def normuon(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float, beta2: float) -> Array:
    m, v = np.zeros_like(w), np.zeros((len(w), 1))
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        o = polar(m)
        v = beta2 * v + (1 - beta2) * np.mean(o**2, axis=1, keepdims=True)
        o = o / (np.sqrt(v) + 1e-8)
        w = w - lr * weight_decay * w - 0.2 * lr * np.sqrt(w.size) / np.linalg.norm(o) * o
    return w


def floor_muon(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float, floor: float,
               rows: bool = False) -> Array:  # fmt: skip
    m, axes = np.zeros_like(w), 1 if rows else None
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        u = polar(m)
        ratio = np.sqrt(np.sum(u**2, axis=axes, keepdims=True) / np.sum(w**2, axis=axes, keepdims=True))
        w = w - lr * weight_decay * w - lr * np.where(ratio < floor, u * floor / ratio, u)
    return w


def brake_muon(w: Array, grads: Array, *, lr: float, momentum: float, weight_decay: float, outward: float,
               inward: float) -> Array:  # fmt: skip
    m = np.zeros_like(w)
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        w = w - lr * weight_decay * w
        before, moved = np.linalg.norm(w), w - lr * polar(m)
        after = np.linalg.norm(moved)
        w = moved / after * (before + (outward if after > before else inward) * (after - before))
    return w


def adamp(w: Array, grads: Array, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
          delta: float = 0.1, wd_ratio: float = 0.1) -> Array:  # fmt: skip
    u = adam_direction(betas, eps)()
    for t, g in enumerate(grads, start=1):
        p, left = u(g, t), 1.0
        for shape in ((len(w), -1), (1, -1)):
            rows, slopes, steps = (x.reshape(shape) for x in (w, g, p))
            cosines = [abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(rows, slopes, strict=True)]
            if max(cosines) < delta / np.sqrt(rows.shape[1]):
                heads = rows / np.linalg.norm(rows, axis=1, keepdims=True)
                p = (steps - heads * np.sum(heads * steps, axis=1, keepdims=True)).reshape(w.shape)
                left = wd_ratio
                break
        w = w * (1 - lr * weight_decay * left) - lr * p
    return w


def nero(w: Array, grads: Array, *, lr: float, beta: float, norm: float) -> Array:
    """Gradients are centred before they are measured, where the paper centres the weights afterwards."""
    square = np.zeros((len(w), 1))
    w = w - w.mean(axis=1, keepdims=True)
    w = norm * w / np.linalg.norm(w, axis=1, keepdims=True)
    for t, g in enumerate(grads, start=1):
        g = g - g.mean(axis=1, keepdims=True)
        square = beta * square + (1 - beta) * np.sum(g**2, axis=1, keepdims=True)
        w = w - lr * np.linalg.norm(w, axis=1, keepdims=True) * g / np.sqrt(square / (1 - beta**t))
        w = w - w.mean(axis=1, keepdims=True)
        w = norm * w / np.linalg.norm(w, axis=1, keepdims=True)
    return w


def nero_biases(b: Array, grads: Array, *, lr: float, beta: float) -> Array:
    square, sigma = np.zeros_like(b), float(np.abs(b).mean()) or 0.01
    for t, g in enumerate(grads, start=1):
        square = beta * square + (1 - beta) * g**2
        b = b - lr * sigma * g / np.sqrt(square / (1 - beta**t))
    return b


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def md(w: Array, grads: Array, *, direction: Callable[[], Callable[[Array, int], Array]], lr: float,
       betas: tuple[float, float], eps: float, gain_rate: float, weight_decay: float = 0.0) -> Array:  # fmt: skip
    """[hagele2026] Alg. 2 with the three parts held apart: a direction, and gains of rows and columns."""
    inner, of_rows, of_columns = direction(), adam_direction(betas, eps)(), adam_direction(betas, eps)()
    v, n = w.copy(), np.linalg.norm(w)
    rows, columns = np.full((len(w), 1), np.log(np.e - 1)), np.full((1, w.shape[1]), np.log(np.e - 1))
    for t, g in enumerate(grads, start=1):
        r, c = softplus(rows), softplus(columns)
        slope_rows = np.sum(g * v * c, axis=1, keepdims=True) * (1 - np.exp(-r))  # softplus' = 1 − exp(−softplus)
        slope_columns = np.sum(g * v * r, axis=0, keepdims=True) * (1 - np.exp(-c))
        v = v - lr * weight_decay * v - lr * inner(r * g * c, t)
        v = n * v / np.linalg.norm(v)
        rows = rows - lr * gain_rate * of_rows(slope_rows, t)
        columns = columns - lr * gain_rate * of_columns(slope_columns, t)
    return softplus(rows) * v * softplus(columns)


def md_adam(w: Array, grads: Array, **options: Any) -> Array:
    return md(w, grads, direction=adam_direction(options["betas"], options["eps"]), **options)


def muon_direction(momentum: float) -> Callable[[], Callable[[Array, int], Array]]:
    def start() -> Callable[[Array, int], Array]:
        state: dict[str, Any] = {"m": 0.0}

        def u(g: Array, t: int) -> Array:
            state["m"] = momentum * state["m"] + (1 - momentum) * g
            return polar(state["m"])

        return u

    return start


def angular_muown(w: Array, grads: Array, *, lr: float, momentum: float, betas: tuple[float, float], eps: float,
                  turn_decay: float, turn_power: float, turn_warmup: int) -> Array:  # fmt: skip
    m, of_lengths = np.zeros_like(w), adam_direction(betas, eps)()
    r = np.linalg.norm(w, axis=1, keepdims=True)
    u = w / r
    for t, g in enumerate(grads, start=1):
        slope = np.sum(g * u, axis=1, keepdims=True)
        tangent = r * (g - u * slope)
        m = momentum * m + tangent
        kappa = (1 + turn_decay * max(0, t - 1 - turn_warmup)) ** -turn_power
        u = u - lr * np.sqrt(max(1.0, w.shape[0] / w.shape[1])) * kappa * polar(tangent + momentum * m)
        u = u / np.linalg.norm(u, axis=1, keepdims=True)
        r = r - lr * of_lengths(slope, t)
    return r * u
