"""A run whose every number is known: signs of given gradients, worked out a second time in plain float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import equipoise as eq
from equipoise import theory

STEPS, WARMUP, PEAK, DECAY, BETA = 400, 20, 0.02, 0.5, 0.9
TOKENS = 32
SHAPES = {"0.weight": (6, 8), "1.weight": (5, 6), "1.bias": (5,)}
MATRICES = ("0.weight", "1.weight")
Array = np.ndarray


def lr_of(step: int) -> float:
    """Linear warmup to the peak at step 20, then a cosine to a tenth of it at step 400."""
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


LR = np.array([lr_of(step) for step in range(1, STEPS + 1)])
LOSS = np.array([2 / math.sqrt(step) + 0.1 * math.sin(step) for step in range(1, STEPS + 1)])
VALIDATION = {step: 0.5 + (step / STEPS - 0.7) ** 2 for step in range(25, STEPS + 1, 25)}
GRADIENTS = {
    name: np.random.default_rng(k).normal(size=(STEPS, *shape)) for k, (name, shape) in enumerate(SHAPES.items())
}
START = {name: np.random.default_rng(100 + k).normal(size=shape) / 4 for k, (name, shape) in enumerate(SHAPES.items())}


def decay_of(name: str) -> float:
    return DECAY if name in MATRICES else 0.0


def train(path: Path, *, every: int) -> Path:
    """Really train it, in float64, and watch each k-th step."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 6, bias=False), torch.nn.Linear(6, 5)).double()
    named = dict(model.named_parameters())
    for name, p in named.items():
        p.data.copy_(torch.from_numpy(START[name]))
    groups = [{"params": [named[n] for n in MATRICES], "weight_decay": DECAY}]
    groups += [{"params": [named["1.bias"]], "weight_decay": 0.0}]
    optimizer = eq.SignSGDM(groups, lr=PEAK, momentum=BETA)
    meta = {"tokens_per_step": TOKENS}
    with eq.watch(model, optimizer, path, every=every, spectra=1, neurons=8, meta=meta, strict=True) as watch:
        for step in range(1, STEPS + 1):
            for group in optimizer.param_groups:
                group["lr"] = lr_of(step)
            for name, p in named.items():
                p.grad = torch.from_numpy(GRADIENTS[name][step - 1].copy())
            optimizer.step()
            watch.log(loss=float(LOSS[step - 1]))
            if step in VALIDATION:
                watch.log(val_loss=VALIDATION[step])
    return path


def forecast(name: str) -> theory.Forecast:
    """What theory says of a tensor, from every step's lr."""
    shape = SHAPES[name]
    return theory.forecast(
        "signsgdm", lr=LR, weight_decay=decay_of(name), betas=(BETA, 0.999), size=math.prod(shape),
        init_norm=float(np.linalg.norm(START[name])), scale_invariant=len(shape) > 1,
    )  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """Every number of a tensor at every step; arrays have an entry a step."""

    name: str
    values: dict[str, Array] = field(default_factory=dict)
    weights: list[Array] = field(default_factory=list)
    updates: list[Array] = field(default_factory=list)

    def at(self, quantity: str, steps: Sequence[int]) -> Array:
        return self.values[quantity][np.asarray(steps) - 1]


def truth(name: str) -> Truth:
    """M ← βm + (1−β)g, w ← (1−ηλ)w − η sign(m), and what each quantity is by its definition."""
    found: dict[str, list[float]] = {}
    w, m, start = START[name].copy(), np.zeros(SHAPES[name]), START[name]
    weights, updates = [w], []
    rows = SHAPES[name][0] if len(SHAPES[name]) > 1 else 1
    for step in range(1, STEPS + 1):
        lr, g = lr_of(step), GRADIENTS[name][step - 1]
        m = BETA * m + (1 - BETA) * g
        update, decay = -lr * np.sign(m), lr * decay_of(name) * w
        new = w - decay + update
        norm = float(np.linalg.norm(w))
        change = new - w
        along = float(np.sum(change * w)) / norm
        by_row = [(a, b) for a, b in zip(w.reshape(rows, -1), new.reshape(rows, -1), strict=True)]
        norms, turns = [float(np.linalg.norm(b)) for _, b in by_row], [between(a, b) for a, b in by_row]
        now = {
            "norm": float(np.linalg.norm(new)),
            "rotation": between(w, new),
            "update": float(np.linalg.norm(update)),
            "decay": float(np.linalg.norm(decay)),
            "relative_update": float(np.linalg.norm(update)) / norm,
            "effective_lr": lr / norm,
            "radial_decay": -float(np.sum(update * w)) / (lr * norm**2),
            "grad_weight_cos": float(np.sum(g * w)) / (norm * float(np.linalg.norm(g))),
            "c_err": float(np.sum(update**2)) / (lr**2 * w.size),  # signs: as many ones as weights
            "grad_norm": float(np.linalg.norm(g)),
            "angle": between(start, new),
            "total_decay": decay_of(name) - float(np.sum(update * w)) / (lr * norm**2),
            "before": norm,
            "after": float(np.linalg.norm(new)),
            "along": along,
            "across": float(np.linalg.norm(change - along * w / norm)),
        }
        for share, side in ((0.1, "low"), (0.9, "high")):
            now |= {f"norm_{side}": float(np.quantile(norms, share)) * math.sqrt(rows)}
            now |= {f"rotation_{side}": float(np.quantile(turns, share))}
        for quantity, value in now.items():
            found.setdefault(quantity, []).append(value)
        w = new
        weights.append(w)
        updates.append(update)
    return Truth(name, {q: np.array(v) for q, v in found.items()}, weights, updates)


def between(a: Array, b: Array) -> float:
    """The angle between two vectors."""
    cosine = float(np.sum(a * b)) / float(np.linalg.norm(a) * np.linalg.norm(b))
    return math.acos(min(1.0, max(-1.0, cosine)))


def spectrum(matrix: Array) -> dict[str, float]:
    """Top singular value, stable rank and entropy of a matrix."""
    square = np.linalg.svd(matrix, compute_uv=False) ** 2
    p = square / square.sum()
    entropy = -float(np.sum(p * np.log(p))) / math.log(len(p))
    off = float(np.sqrt(np.mean((square / square.mean() - 1) ** 2)))
    top = math.sqrt(square[0])
    return {"top": top, "stable_rank": float(square.sum() / square[0]), "entropy": entropy, "orthogonality": off}


def contributions(last: int, decay: float = DECAY) -> Array:
    """What each step up to the last adds to the weights then: its lr, times what every later step keeps."""
    return np.array([LR[j] * np.prod(1 - LR[j + 1 : last] * decay) for j in range(last)])


def effective_steps(last: int, decay: float = DECAY) -> float:
    c = contributions(last, decay)
    return float(c.sum() ** 2 / (c @ c))


def init_share(last: int, decay: float = DECAY) -> float:
    return float(np.prod(1 - LR[:last] * decay))


def measured_steps(every: int, last: int = STEPS) -> list[int]:
    return sorted({1, *range(every, last + 1, every)})
