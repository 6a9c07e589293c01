"""Tasks: the loss and metrics that a model is trained and tested on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipoise.lab.data import Split
from equipoise.lab.data.phonemes import PAD


def loss(task: str, model: nn.Module, x: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """The loss of a batch.

    Cross-entropy for "classes", "tokens" and "pairs" (padding left out), with label smoothing, mean square for
    "regression". For a "walk" y is the gradient that the output shall have.
    """
    if task == "walk":
        return (model(x) * y).sum()
    if task == "regression":
        return functional.mse_loss(model(x), y)
    scores, wanted = predict(task, model, x, y)
    ignored = PAD if task == "pairs" else -100
    return functional.cross_entropy(scores, wanted, ignore_index=ignored, label_smoothing=smoothing)


def predict(task: str, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [predictions, classes], and the right classes."""
    if task == "pairs":
        scores, y = model(x, y[:, :-1]), y[:, 1:]
    else:
        scores = model(x)
    return scores.float().flatten(0, -2), y.flatten()


@torch.no_grad()
def evaluate(task: str, model: nn.Module, test: Split, *, size: int = 512) -> dict[str, float]:
    """Mean loss over the test, and the share of right predictions where there are classes.

    Args:
        task: one of `equipoise.lab.data.TASKS`, but not "walk".
        model: is put into evaluation and back.
        test: the samples.
        size: samples at a time.
    """
    training = model.training
    model.eval()
    total, right, count = 0.0, 0.0, 0
    for start in range(0, len(test), size):
        x, y = test.take(slice(start, start + size))
        if task == "regression":
            total += float(functional.mse_loss(model(x), y, reduction="sum"))
            count += y.numel()
            continue
        scores, wanted = predict(task, model, x, y)
        if task == "pairs":
            kept = wanted != PAD
            scores, wanted = scores[kept], wanted[kept]
        total += float(functional.cross_entropy(scores, wanted, reduction="sum"))
        right += float((scores.argmax(1) == wanted).sum())
        count += len(wanted)
    model.train(training)
    found = {"loss": total / count}
    if task != "regression":
        found["accuracy"] = right / count
    if task == "tokens":
        found["perplexity"] = math.exp(min(total / count, 700.0))
    return found
