"""The inner products of measured steps, for each row or tensor, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SQUARES = ("ww", "gg", "mm", "dd", "cw")
SUMS = (*SQUARES, "gw", "gm", "dw", "cd", "same")
"""Inner products that are measured of each row: w·w, g·g, m·m, Δ·Δ, ŵ·ŵ, then g·w, g·m, Δ·w′ (w′ after the step), Δ·ŵ,
and the number of weights that did not change (low precision alone); those with ŵ where decay is cautious alone."""


class RowSums:
    """The inner products of all rows; sums over tensors are taken without putting rows in order.

    Args:
        values: for each of `names` and each step a number for each row.
        names: some of `SUMS`.
        firsts: where the rows of each tensor begin, where they are in order.
        pieces: where they are in the order of blocks: the place of each row, where each tensor's rows begin, and which
            tensor it is.
    """

    def __init__(
        self,
        values: NDArray[Any],
        names: list[str],
        firsts: NDArray[np.int64],
        pieces: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> None:
        self._values, self._names, self._firsts, self._pieces = values, names, firsts, pieces

    def tensors(self) -> dict[str, Array]:
        """The sums of each tensor, by step."""
        if self._pieces is None:
            return self._named(np.add.reduceat(self._values, self._firsts, axis=-1, dtype=np.float64))
        _, starts, tensors = self._pieces
        values = np.add.reduceat(self._values, starts, axis=-1, dtype=np.float64)
        total = np.zeros((*values.shape[:-1], len(self._firsts)))
        if len(tensors) == len(self._firsts):  # each tensor is one piece
            total[..., tensors] = values
        else:
            np.add.at(
                np.moveaxis(total, -1, 0), tensors, np.moveaxis(values, -1, 0)
            )  # a large tensor has several pieces
        return self._named(total)

    def rows(self) -> dict[str, Array]:
        """The sums of each row, in the order of the tensors, by step."""
        rows = np.empty(self._values.shape)
        rows[..., slice(None) if self._pieces is None else self._pieces[0]] = self._values
        return self._named(rows)

    def _named(self, values: Array) -> dict[str, Array]:
        found = dict(zip(self._names, values, strict=True))
        # Δ·w′ − Δ·Δ = Δ·w, of which rounding is left where w is zero.
        found["dw"] = np.where(found["ww"] == 0, 0.0, found["dw"] - found["dd"])
        return dict.fromkeys(SUMS, np.zeros(values.shape[1:])) | found
