"""Tensors as rows: a neuron, a tensor or a part of one each, with their sums and inner products as columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def row_count(x: Tensor, granularity: str | int) -> int:
    """How many rows a tensor is: its neurons ("neuron"), the whole ("tensor"), or that many equal parts."""
    if granularity == "neuron":
        return x.shape[0] if x.ndim else 1
    return 1 if granularity == "tensor" else int(granularity)


def as_rows(x: Tensor, granularity: str | int) -> Tensor:
    """A tensor as a matrix of `row_count` rows."""
    rows = row_count(x, granularity)
    if x.ndim == 2 and x.shape[0] == rows:
        return x
    try:
        return x.reshape(rows, -1)
    except RuntimeError:  # shards of a DTensor that do not meet at the rows' ends: gather it
        if not hasattr(x, "placements"):
            raise
        return gathered(x).reshape(rows, -1)


def neurons(x: Tensor, group: Any) -> Tensor:
    """The rows of a matrix, of a convolution, or of all matrices of a stack, such as experts, by the group's role."""
    stack = x.ndim == 3 and not group.get("flatten", True) and group.get("role") != "conv"
    return x.reshape(-1, x.shape[-1]) if stack else as_rows(x, "neuron")


def gathered(x: Any) -> Tensor:
    """A DTensor with all of it on every rank."""
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()] * len(x.placements))


def row_sum(rows: Tensor) -> Tensor:
    """The sum of each row, as a column; whole also where a DTensor's rows lie on several ranks."""
    return reduced(rows.sum(dim=1, keepdim=True))


def tensor_sum(column: Tensor, heights: list[int] | None) -> Tensor:
    """The sum over all rows of a tensor; with the heights of several tensors, which rows are of, of each row's own."""
    if heights is None:
        return everywhere(column.sum())
    if len(set(heights)) == 1:
        sums = column.view(len(heights), -1).sum(1, keepdim=True)
        return sums.expand(-1, heights[0]).reshape(-1, 1)
    return torch.cat([x.sum(0, keepdim=True).expand_as(x) for x in column.split(heights)])


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of a with its row of b, as a column, in one pass over the two."""
    if hasattr(a, "placements") or torch.compiler.is_compiling():
        return row_sum(a * b)
    if a is b:
        return torch.linalg.vector_norm(a, dim=1, keepdim=True).square()
    return torch.linalg.vecdot(a, b).unsqueeze(1)


def row_mean(rows: Tensor) -> Tensor:
    """The mean of each row, as a column."""
    return row_sum(rows) / rows.shape[1]


def row_norm(rows: Tensor) -> Tensor:
    """The norm of each row, as a column."""
    return row_dot(rows, rows).sqrt()


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays one. Scaled first: squares of small numbers are lost in float32."""
    peak = reduced(rows.abs().amax(dim=1, keepdim=True))
    scaled = rows / peak.clamp_min(torch.finfo(rows.dtype).tiny)
    return scaled / row_norm(scaled).clamp_min(1e-30)


def centred(rows: Tensor) -> Tensor:
    """Rows without their means. A constant row leaves only rounding, which must not become a direction: zero.

    A row of one number has no mean to take off, and stays.

    Mean and spread are those of the differences from a number near the row's own, its first: then they can be summed in
    one pass, and nothing is lost where the mean is large.
    """
    if rows.shape[1] == 1:
        return rows
    near = row_mean(rows) if hasattr(rows, "placements") else rows[:, :1]
    off = rows - near
    mean = row_mean(off)
    spread = row_dot(off, off) - row_sum(off) * mean
    return torch.where(spread > 1e-12 * row_dot(rows, rows), off - mean, 0.0)


def reduced(x: Tensor) -> Tensor:
    """A DTensor whose pending sums over ranks are carried out; any other tensor as it is."""
    if not hasattr(x, "placements"):
        return x
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if p.is_partial() else p for p in x.placements]  # type: ignore[attr-defined]
    return x.redistribute(placements=placements)  # type: ignore[attr-defined]


def center_rows(w: Tensor, granularity: str | int) -> None:
    """Take the mean from every row and keep its norm; a constant row becomes zero, and one of one number stays."""
    if w.numel() <= row_count(w, granularity):
        return
    rows = as_rows(w, granularity)
    rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
    before = row_norm(rows)
    rows = rows - row_mean(rows)
    after = row_norm(rows)
    put(w, rows * torch.where(after > 1e-6 * before, before / after.clamp_min(1e-38), 0.0))


def put(w: Tensor, rows: Tensor) -> None:
    """Write rows back into their tensor."""
    w.copy_(rows if rows.shape == w.shape else rows.reshape(w.shape))


def column_like(x: Tensor, n: Any) -> Tensor:
    """A column for each row, of the type and on the ranks of another."""
    if not hasattr(n, "placements"):
        return x.to(device=n.device, dtype=n.dtype, non_blocking=True)  # nobody waits
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(dtype=n.dtype, device=n.device), n.device_mesh, n.placements)


def all_finite(x: Tensor) -> bool:
    """Whether every number is finite, on all ranks."""
    return not bool(everywhere((~torch.isfinite(x)).sum()))


def everywhere(x: Tensor) -> Tensor:
    """A scalar as an ordinary tensor, the same on all ranks."""
    return reduced(x).full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[attr-defined]
