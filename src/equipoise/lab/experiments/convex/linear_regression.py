"""Linear regression with many outputs, the simplest problem that has a matrix: [notepad] 5.2.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, final

from equipoise.lab.experiments.convex.regression import Convex, Size, sizes

if TYPE_CHECKING:
    from torch import Tensor

LRS = {"sgdm": (0.1, 0.3, 1.0, 3.0, 10.0), "adamw": (0.1, 0.3, 1.0, 3.0), "muon": (0.1, 0.3, 1.0)}
MEDIUM = {"sgdm": (1.0, 3.0, 10.0, 30.0, 100.0), "adamw": (0.1, 0.3, 1.0, 3.0), "muon": (0.1, 0.3, 1.0, 3.0)}
"""So that the best of what is compared is inside."""

FLOORS = {"sgdm": (0.1, 1.0), "adamw": (0.03, 0.3), "muon": (0.1, 1.0)}


@final
class LinearRegression(Convex):
    """SGD, AdamW and Muon on linear regression."""

    name: ClassVar[str] = "linear-regression"
    source: ClassVar[str] = "[notepad] 5.2.1"
    about: ClassVar[str] = "When is Muon better than SGD and AdamW on linear regression, and what is its gradient like?"
    statements: ClassVar[Mapping[str, str]] = {
        "condition": "[notepad] 5.2.1: the features' condition number tells how hard the problem is to learn",
        "muon-conditions": (
            "[notepad] 5.2 asks under which minimal conditions Muon has advantages; hypothesis: full batches of"
            " ill-conditioned features"
        ),
        "noise-full": "theory: with full batches noise moves the optimum and nothing else",
        "noise-mini": "theory: with mini-batches noise is noise of the gradient",
        "gradient-rank": "[notepad] 5.2.1: G = VΣ²VᵀW − VΣUᵀY, so that the gradient has the features' spectrum",
        **{
            f"flatter-{batch}": (
                "[notepad] 5.2.1 means to study the SVD of the gradient over the steps; hypothesis: orthogonal steps"
                f" leave it flatter than SGD does; with {words}"
            )
            for batch, words in (("full", "full batches"), ("mini", "mini-batches"))
        },
        "floor": (
            "theory 8: the size of dualize(G) is not G's, so that at a constant lr Adam and Muon stop at a loss ∝ lr²,"
            " while SGD goes on"
        ),
    }
    data: ClassVar[str] = "regression"
    sizes: ClassVar[Mapping[str, Size]] = sizes((0.1, 1.0), LRS, FLOORS, MEDIUM)

    @staticmethod
    def losses(X: Tensor, Y: Tensor) -> tuple[float, float]:
        """The losses of W = 0 and of (XᵀX)⁻¹XᵀY."""
        import torch

        Y = Y.double()
        W = torch.linalg.lstsq(X, Y).solution
        return float(Y.square().mean()), float((Y - X @ W).square().mean())
