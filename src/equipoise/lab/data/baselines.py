"""Baselines without a network, as rows for tables.

A text is predicted by how often tokens occur (unigram), or occur after the token before (bigram); classes by how often
they occur (frequency), or by a linear model. Losses are those that `equipoise.lab.train.task.evaluate` has, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipoise import _check
from equipoise.lab.data.base import Data, Split
from equipoise.lab.data.phonemes import PAD

DISCOUNT = 0.75
"""What a bigram's count is lowered by, for those that were never seen: [ney1994]."""

PRECISE = 1e-5
"""How far the linear model's loss may be above the least one."""

CHUNK = 1 << 22
EVALUATIONS = 1000

Losses = dict[str, float]


def rows(data: Data, *, l2: float = 1e-2) -> list[dict[str, Any]]:
    """A row for each baseline of a task, with the same metrics as a trained network: test_loss, validation_loss, ….

    Args:
        data: a task with classes, tokens or pairs of sequences.
        l2: of the linear model.

    >>> from equipoise.lab.data import load
    >>> [(row["baseline"], round(row["test_loss"], 2)) for row in rows(load("digits"))]
    [('frequency', 2.31), ('linear', 0.21)]
    """
    if data.task == "classes":
        named: dict[str, Callable[[Data], Losses]] = {"frequency": frequency, "linear": lambda d: linear(d, l2=l2)}
    elif data.task in ("tokens", "pairs"):
        named = {"unigram": unigram, "bigram": bigram}
    else:
        raise ValueError(f"data.task = {data.task!r}: must be classes, tokens or pairs")
    return [{"baseline": name} | measure(data) for name, measure in named.items()]


def unigram(data: Data) -> Losses:
    """Loss of p(b) = (c(b) + 1)/(N + V), by counts of N tokens of the training part, V in the vocabulary.

    Args:
        data: tokens or pairs; of pairs the targets are predicted.
    """
    chances = _unigram(data)
    return {f"{part}_loss": _mean(-np.log(chances[b]) for _, b in _tokens(data, split)) for part, split in _parts(data)}


def bigram(data: Data) -> Losses:
    """Loss of p(b|a) = (max(c(ab) − D, 0) + D·s(a)·p(b))/c(a), s(a) the number of different tokens seen after a.

    p(b) is the unigram's, and p(b|a) is p(b) after an a that was never seen. D is `DISCOUNT`.

    Args:
        data: tokens or pairs; of pairs the targets are predicted.
    """
    counts = _Bigrams(data)
    return {
        f"{part}_loss": _mean(-np.log(counts.chance(a, b)) for a, b in _tokens(data, split))
        for part, split in _parts(data)
    }


def frequency(data: Data) -> Losses:
    """Loss and accuracy of p(class) = (count + 1)/(samples + classes)."""
    train = _train(data)
    chances = torch.bincount(train.y.long(), minlength=data.outputs).double() + 1
    scores = (chances / chances.sum()).log().float()
    return _metrics(data, lambda x: scores.expand(len(x), -1))


def linear(data: Data, *, l2: float = 1e-2) -> Losses:
    """Loss and accuracy of the linear model that has the least cross-entropy + l2/2·‖W‖² on the training part.

    W has a bias for each class, decayed as the rest. There is one such W, as the objective is l2-strongly convex; what
    is found has an objective at most ‖gradient‖²/(2·l2) ≤ `PRECISE` above it. Images are as they are stored.

    Args:
        data: with classes.
        l2: > 0.
    """
    _check.number("l2", l2, low=0, open_low=True)
    x, y = _train(data).take(slice(None))
    x = _with_ones(x)
    # L-BFGS walks in V, W = V·L⁻¹ with L·Lᵀ = XᵀX/(samples·classes) + l2: about the objective's curvature. In W itself
    # it takes hundreds of steps, as pixels that are next to each other are much alike.
    curvature = (x.T @ x).double() / (len(x) * data.outputs)
    floor = max(l2, 1e-6 * float(curvature.diagonal().max()))
    factor = torch.linalg.cholesky(curvature + floor * torch.eye(x.shape[1], dtype=torch.double)).float()
    v = torch.zeros(data.outputs, x.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [v], max_iter=10, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )

    def weights() -> Tensor:
        return torch.linalg.solve_triangular(factor, v, upper=False, left=False)

    def closure() -> Tensor:
        optimizer.zero_grad()
        w = weights()
        loss = functional.cross_entropy(x @ w.T, y) + l2 / 2 * w.square().sum()
        loss.backward()
        return loss

    done, above = 0, math.inf
    while above > PRECISE and done < EVALUATIONS:
        optimizer.step(closure)
        done = optimizer.state[v]["func_evals"]
        closure()
        assert v.grad is not None
        above = float((v.grad @ factor.T).double().square().sum()) / (2 * l2)
    if above > PRECISE:
        raise ValueError(f"l2 = {l2}: the linear model is not found in {EVALUATIONS} evaluations; take a larger l2")
    w = weights().detach()
    return _metrics(data, lambda x: _with_ones(x) @ w.T)


@final
class _Bigrams:
    """Counts of pairs, sparse: those of a large vocabulary are few of all that there could be."""

    def __init__(self, data: Data) -> None:
        self.size, self.unigram = data.outputs, _unigram(data)
        codes, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        for a, b in _tokens(data, _train(data)):
            new, often = np.unique(a * self.size + b, return_counts=True)
            codes, place = np.unique(np.concatenate([codes, new]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, often])).astype(np.int64)
        self.codes, self.counts = codes, counts
        self.total = np.bincount(codes // self.size, counts, self.size)
        self.kinds = np.bincount(codes // self.size, minlength=self.size)

    def chance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """P(b|a)."""
        wanted = a * self.size + b
        place = np.searchsorted(self.codes, wanted).clip(max=len(self.codes) - 1)
        seen = np.where(self.codes[place] == wanted, self.counts[place] - DISCOUNT, 0.0)
        total = self.total[a]
        smoothed = (seen + DISCOUNT * self.kinds[a] * self.unigram[b]) / np.maximum(total, 1)
        return np.where(total > 0, smoothed, self.unigram[b])


def _unigram(data: Data) -> np.ndarray:
    counts = np.ones(data.outputs)
    for _, b in _tokens(data, _train(data)):
        counts += np.bincount(b, minlength=data.outputs)
    return counts / counts.sum()


def _tokens(data: Data, split: Split) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The token before, and the one to predict, of all predictions of a part."""
    each = max(1, CHUNK // split.y.shape[1])
    for start in range(0, len(split), each):
        x, y = split.x[start : start + each], split.y[start : start + each]
        a, b = (y[:, :-1], y[:, 1:]) if data.task == "pairs" else (x, y)
        before, wanted = (part.cpu().numpy().reshape(-1).astype(np.int64) for part in (a, b))
        kept = wanted != PAD if data.task == "pairs" else slice(None)
        yield before[kept], wanted[kept]


def _parts(data: Data) -> list[tuple[str, Split]]:
    if data.test is None:
        raise ValueError(f"{data.name} has no test")
    return [("test", data.test), *data.probes.items()]


def _train(data: Data) -> Split:
    if not isinstance(data.train, Split):
        raise ValueError(f"{data.name} makes its samples by step: baselines need them all")
    return data.train


def _with_ones(x: Tensor) -> Tensor:
    return functional.pad(x.flatten(1), (0, 1), value=1.0)


def _mean(losses: Iterator[np.ndarray]) -> float:
    total, count = 0.0, 0
    for part in losses:
        total, count = total + float(part.sum()), count + part.size
    return total / count


def _metrics(data: Data, predict: Callable[[Tensor], Tensor]) -> Losses:
    found = {}
    for part, split in _parts(data):
        total, right = 0.0, 0
        for start in range(0, len(split), 1000):
            x, y = split.take(slice(start, start + 1000))
            scores = predict(x).double()
            total += float(functional.cross_entropy(scores, y, reduction="sum"))
            right += int((scores.argmax(1) == y).sum())
        found |= {f"{part}_loss": total / len(split), f"{part}_accuracy": right / len(split)}
    return found
