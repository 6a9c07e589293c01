"""Logistic regression with many classes, a network of one layer: [notepad] 5.2.2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.convex.regression import Convex, Size, sizes
from equipoise.lab.report.claims import Claim, Stat

if TYPE_CHECKING:
    from torch import Tensor

LRS = {"sgdm": (0.3, 3.0, 10.0, 30.0, 100.0), "adamw": (0.1, 0.3, 1.0, 3.0, 10.0), "muon": (0.1, 0.3, 1.0, 3.0, 10.0)}
FLOORS = {"sgdm": (0.1, 1.0), "adamw": (0.03, 0.3), "muon": (0.1, 1.0)}


@final
class LogisticRegression(Convex):
    """SGD, AdamW and Muon on logistic regression."""

    name: ClassVar[str] = "logistic-regression"
    source: ClassVar[str] = "[notepad] 5.2.2"
    about: ClassVar[str] = (
        "The same for classes: when is Muon better than SGD and AdamW, and what is its gradient like?"
    )
    statements: ClassVar[Mapping[str, str]] = {
        "condition": "[notepad] 5.2.1, of both problems: the features' condition number tells how hard it is to learn",
        "muon-conditions": (
            "[notepad] 5.2 asks under which minimal conditions Muon has advantages; hypothesis: full batches of"
            " ill-conditioned features"
        ),
        "noise-full": "theory: with full batches noise changes the problem alone",
        "noise-mini": "theory: with mini-batches noise is noise of the gradient",
        "gradient-rank": "[notepad] 5.2.2: G = Xᵀ(P − Y)/N, so that the gradient has the features' spectrum",
        **{
            f"flatter-{batch}": (
                "[notepad] 5.2 means to study the SVD of the gradient over the steps; hypothesis: orthogonal steps"
                f" leave it flatter than SGD does; with {words}"
            )
            for batch, words in (("full", "full batches"), ("mini", "mini-batches"))
        },
        "floor": (
            "theory 8: the size of dualize(G) is not G's, so that at a constant lr Adam and Muon stop at a loss ∝ lr²"
            " near the optimum, while SGD goes on"
        ),
        "classes": (
            "theory: the rows of P − Y sum to 0, so that the gradient's rank is K − 1 at most, and Muon's step has one"
            " singular value of 0"
        ),
    }
    data: ClassVar[str] = "classification"
    sizes: ClassVar[Mapping[str, Size]] = sizes((0.2, 0.5), LRS, FLOORS, LRS)

    @staticmethod
    def losses(X: Tensor, Y: Tensor) -> tuple[float, float]:
        """The loss of W = 0, and the least that L-BFGS finds."""
        import torch
        from torch.nn import functional

        X = torch.linalg.qr(X)[0] * len(X) ** 0.5  # the least loss is the same, and far sooner found
        W = torch.zeros(X.shape[1], int(Y.max()) + 1, dtype=X.dtype, requires_grad=True)
        search = torch.optim.LBFGS(
            [W], max_iter=5000, max_eval=20_000, tolerance_grad=1e-9, tolerance_change=0.0, history_size=50,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss() -> Tensor:
            search.zero_grad()
            value = functional.cross_entropy(X @ W, Y)
            value.backward()
            return value

        with torch.enable_grad():
            search.step(loss)
            return math.log(W.shape[1]), float(loss().detach())

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """With the smallest singular values of gradients and of Muon's steps."""
        outcome = super().analyse(done)
        gradients, steps = [], []
        for members in (v for (s, name), v in self.best(done).items() if name == "muon" and s.batch == "full"):
            gradients += [d.measured["flatness"]["gradient"] for d in members]
            steps += [d.measured["flatness"]["step"] for d in members]
        own = [
            Claim(f"classes/{which}", "theory", f"smallest over largest singular value of {of}, mean over the steps",
                  0.0, Stat.of(found), tolerance=0.01)
            for which, of, found in (("gradient", "the gradient", gradients), ("step", "Muon's step", steps))
        ]  # fmt: skip
        return Outcome(outcome.rows, [*outcome.claims, *own], outcome.curves)
