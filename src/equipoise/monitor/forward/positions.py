"""The loss by token position, as numbers to log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def by_position(losses: Tensor, mask: Tensor | None = None, *, name: str = "by position") -> dict[str, Tensor]:
    """The mean loss of positions 1, 2, 3–4, 5–8 and so on, for `watch.log`.

    A model that uses its context has a lower loss at later positions. Nothing waits for a device, and nothing is kept
    of the graph: `watch.log(by_position(losses), loss=losses.mean())`.

    Args:
        losses: of each token, [batch, length], as `cross_entropy(…, reduction="none")` gives it.
        mask: true where a token counts, of the same shape. Positions where none does are NaN.
        name: what the names begin with.

    >>> import torch
    >>> found = by_position(torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 1.0, 2.0, 1.0]]))
    >>> {name: round(value.item(), 2) for name, value in found.items()}
    {'by position/1': 4.0, 'by position/2': 2.0, 'by position/3-4': 1.5}
    """
    if losses.ndim != 2 or not losses.numel():
        raise ValueError(f"losses has shape {tuple(losses.shape)}: must be [batch, length], one loss for each token")
    if mask is not None and mask.shape != losses.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}: must be that of losses, {tuple(losses.shape)}")
    values = losses.detach().double() if losses.device.type != "mps" else losses.detach().float()
    counts = values.new_ones(values.shape) if mask is None else mask.to(values.dtype)
    totals = (values.masked_fill(counts == 0, 0.0) * counts).sum(0)
    counts = counts.sum(0)
    out: dict[str, Tensor] = {}
    start, end, length = 0, 1, losses.shape[1]
    while start < length:
        end = min(end, length)
        label = f"{start + 1}" if end - start == 1 else f"{start + 1}-{end}"
        out[f"{name}/{label}"] = totals[start:end].sum() / counts[start:end].sum()
        start, end = end, 2 * end
    return out
