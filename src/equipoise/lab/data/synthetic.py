"""Linear and logistic regression with known weights.  [notepad] 5.2."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import _check
from equipoise.lab.data.base import Data, Split, seeded


def regression(
    *, samples: int = 1000, inputs: int = 20, outputs: int = 10, condition: float | None = None, noise: float = 0.1,
    tests: int = 1000, seed: int = 0,
) -> Data:  # fmt: skip
    """Y = XW* + ε, X = [1 | Z].

    Args:
        samples: N.
        inputs: d; X has a column of ones besides.
        outputs: D.
        condition: condition number of Z, its singular values being in geometric sequence; None leaves Z Gaussian.
        noise: standard deviation of ε.
        tests: samples to test on, of the same distribution; 0 tests on those that it is trained on.
        seed: of everything.

    W* has d + 1 rows; [notepad] prints d.
    """
    X, W, g = _features(samples, inputs, outputs, condition, tests, seed)
    Y = X @ W + _check.number("noise", noise, low=0) * torch.randn(len(X), outputs, generator=g, dtype=X.dtype)
    return _data("regression", "regression", X, Y.float(), samples, outputs, condition)


def classification(
    *, samples: int = 1000, inputs: int = 20, outputs: int = 10, condition: float | None = None, noise: float = 0.1,
    tests: int = 1000, seed: int = 0,
) -> Data:  # fmt: skip
    """The class is argmax(softmax(XW*) + ε), which is where the one in [notepad]'s one-hot row is.

    Args:
        samples: N.
        inputs: d; X has a column of ones besides.
        outputs: number of classes.
        condition: as for `regression`.
        noise: standard deviation of ε, on probabilities.
        tests: samples to test on; 0 tests on those that it is trained on.
        seed: of everything.
    """
    X, W, g = _features(samples, inputs, outputs, condition, tests, seed)
    P = torch.softmax(X @ W, 1)
    P += _check.number("noise", noise, low=0) * torch.randn(len(X), outputs, generator=g, dtype=X.dtype)
    return _data("classification", "classes", X, P.argmax(1), samples, outputs, condition)


def _features(
    samples: int, inputs: int, outputs: int, condition: float | None, tests: int, seed: int
) -> tuple[Tensor, Tensor, torch.Generator]:
    N, d, D = (_check.whole(n, v, low=1) for n, v in (("samples", samples), ("inputs", inputs), ("outputs", outputs)))
    g = seeded(seed, "synthetic")
    Z = torch.randn(N + _check.whole("tests", tests), d, generator=g, dtype=torch.float64)
    if condition is not None:
        _check.number("condition", condition, low=1)
        if d > N:
            raise ValueError(f"samples = {N}: must be ≥ inputs = {d} where a condition number is asked for")
        # One matrix for all rows: the training rows get the condition number exactly, the others the distribution.
        _, S, Vh = torch.linalg.svd(Z[:N], full_matrices=False)
        wanted = N**0.5 * torch.logspace(0, -1, d, base=condition, dtype=Z.dtype)
        Z = Z @ (Vh.T * (wanted / S)) @ Vh
    X = torch.cat([torch.ones(len(Z), 1, dtype=Z.dtype), Z], 1)
    return X, torch.randn(d + 1, D, generator=g, dtype=Z.dtype), g


def _data(name: str, task: str, X: Tensor, Y: Tensor, N: int, outputs: int, condition: float | None) -> Data:
    X = X.float()
    info = {"condition": condition, "bias": True}
    train = Split(X[:N], Y[:N])
    return Data(name, task, train, Split(X[N:], Y[N:]) if len(X) > N else train, outputs, info)
