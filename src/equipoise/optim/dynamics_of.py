"""What an optimizer does to a parameter, in theory's words, read off its group: of ours, torch's and others'."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from equipoise.optim.matrix_rules import lr_scale, matrices

TORCH_SCALES = {None: "original", "original": "original", "match_rms_adamw": "adam"}
"""What torch.optim.Muon calls `SCALES`, in `adjust_lr_fn`."""


class MatrixLayout(NamedTuple):
    """What of a parameter is a matrix to Muon and its kin.

    Attributes:
        stack: how many matrices it is: a stack of experts, a fused QKV or heads that are split.
        rows: of each.
        columns: of each.
        scale: what the orthogonal factor of each is multiplied by, besides lr.
    """

    stack: int
    rows: int
    columns: int
    scale: float


def matrix_layout(shape: tuple[int, ...], group: dict[str, Any]) -> MatrixLayout:
    """How an optimizer for matrices sees a parameter.

    Args:
        shape: of the parameter, of two dimensions or more.
        group: its group, of our Muon or torch's; one of another class is taken for a single matrix.

    >>> matrix_layout((8, 64, 256), {"flatten": False, "split": 1, "scale": "original"})
    MatrixLayout(stack=8, rows=64, columns=256, scale=1.0)
    """
    ours = "flatten" in group and "split" in group
    stack, rows, columns = matrices(shape, group) if ours else (1, shape[0], math.prod(shape[1:]))
    rule = group["scale"] if ours else TORCH_SCALES.get(group.get("adjust_lr_fn"), "original")
    return MatrixLayout(stack, rows, columns, lr_scale(rows, columns, rule))
