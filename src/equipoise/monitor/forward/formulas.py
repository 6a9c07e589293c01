"""The numbers of the forward pass, from its tensors; in float32 where they are of lower precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FAINT = 1e-3
"""A unit is dead if its largest output in the batch is below this share of the layer's RMS; a ReLU's is then 0 or as
good as 0, and GELU and SiLU never give an exact 0 for long."""

NEAR = 0.01
"""A unit is saturated if all its outputs are this close to an end of the range, as a share of the range."""

ENTRIES, PART = 1 << 16, 16
"""So many attention logits are looked at in each module, or one in so many if that is more."""

MASKED = -5e3
"""A logit at or below this is masked: masks that are added are −10⁴ or less."""


LOWEST = -1e30
"""What a masked logit is here."""


def rms_and_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """RMS and largest absolute value of all numbers."""
    low, high = torch.aminmax(x)  # several times as fast as a norm of infinity
    return rms(x), torch.maximum(-low, high).to(_work(x))


def rms(x: Tensor) -> Tensor:
    """RMS of all numbers."""
    return torch.linalg.vector_norm(x, dtype=_work(x)) / math.sqrt(x.numel())


def dead_share(y: Tensor, units: int) -> Tensor:
    """The share of units whose largest output is far below the layer's RMS.

    Args:
        y: outputs of an activation.
        units: which dimension they are in.

    >>> dead_share(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), 1)
    tensor(0.5000)
    """
    others = [d for d in range(y.ndim) if d != units % y.ndim]
    largest = y.abs().amax(others).to(_work(y))
    return (largest <= FAINT * rms(y)).to(_work(y)).mean()


def saturated_share(y: Tensor, units: int, low: float, high: float) -> Tensor:
    """The share of units all of whose outputs are near an end of the range.

    Args:
        y: outputs of an activation.
        units: which dimension they are in.
        low: the lower end.
        high: the upper end.

    >>> saturated_share(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1, -1.0, 1.0)
    tensor(0.5000)
    """
    others = [d for d in range(y.ndim) if d != units % y.ndim]
    far = torch.minimum(y - low, high - y).amax(others)
    return (far < NEAR * (high - low)).to(_work(y)).mean()


def attention_of(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Largest logit and relative entropy of each head, from queries and keys [batch, heads, length, size].

    Of very many logits, those of the first samples are looked at, or of evenly spread queries of the first one.

    Args:
        q: queries.
        k: keys; of fewer heads where several heads of queries share them.
        mask: as `scaled_dot_product_attention` takes it.
        causal: queries do not see later keys.
        scale: of the logits; 1/√size if not given.
    """
    batch, heads, length, size = q.shape
    seen = k.shape[-2]
    samples, queries = looked_at(batch, heads, length, seen)
    work, rows = _work(q), rows_of(length, queries, q.device)
    part = spread(q[:samples], queries).to(work)
    keys = k[:samples].to(work)
    if keys.shape[1] != heads:
        keys = keys.repeat_interleave(heads // keys.shape[1], 1)
    logits = part @ keys.transpose(-2, -1) * (size**-0.5 if scale is None else scale)
    visible = None
    if mask is not None:
        own = spread(mask.expand(batch, heads, length, seen)[:samples], queries)
        logits = logits.masked_fill(~own, LOWEST) if own.dtype == torch.bool else logits + own.to(work)
    if causal:
        later = torch.arange(seen, device=q.device)[None] > rows[:, None]
        logits = logits.masked_fill(later, LOWEST)
    if mask is None:
        visible = (rows + 1).clamp_max(seen) if causal else rows.new_full((queries,), seen)
    return attention_logits(logits, visible)


def rows_of(length: int, queries: int, device: torch.device) -> Tensor:
    """Evenly spread queries, the first and the last among them.

    Args:
        length: how many there are.
        queries: how many are looked at.
        device: of the numbers.
    """
    return torch.linspace(0, length - 1, queries, device=device).round().long()


def spread(x: Tensor, queries: int) -> Tensor:
    """The part of a tensor [batch, heads, queries, anything] that is looked at.

    Args:
        x: the tensor.
        queries: how many are looked at.
    """
    return x if queries == x.shape[2] else x[:, :, rows_of(x.shape[2], queries, x.device)]


def looked_at(batch: int, heads: int, queries: int, keys: int) -> tuple[int, int]:
    """How many samples, and queries of each, are looked at.

    Args:
        batch: how many samples there are.
        heads: of attention.
        queries: of a sample.
        keys: that each query may see.
    """
    entries = max(ENTRIES, batch * heads * queries * keys // PART)
    return max(1, min(batch, entries // (heads * queries * keys))), min(queries, max(1, entries // (heads * keys)))


def attention_logits(logits: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Largest logit and relative entropy of each head, from logits [batch, heads, queries, keys].

    The entropy of a query is −Σ p·ln p over ln of how many keys it sees: 1 if it looks at all alike, 0 if at one. The
    mean is over queries that see two keys or more; NaN without one.

    Args:
        logits: those that are masked are `MASKED` or lower.
        visible: how many keys each query sees, where that is known.
    """
    logits = logits.to(_work(logits)).clamp_min(LOWEST)  # where 0·∞ is not a number
    if visible is None:
        visible = (logits > MASKED).sum(-1)
    visible = visible.expand(logits.shape[:-1])
    log_p = torch.log_softmax(logits, -1)
    entropy = -torch.linalg.vecdot(log_p.exp(), log_p)
    counts = visible > 1
    relative = torch.where(counts, entropy / visible.clamp_min(2).log(), 0.0)
    mean = relative.sum((0, 2)) / counts.sum((0, 2))
    return logits.amax((0, 2, 3)), mean


def loads(chosen: Tensor, experts: int) -> Tensor:
    """The tokens of each expert over an equal share.

    Args:
        chosen: numbers of experts.
        experts: how many there are.

    >>> loads(torch.tensor([0, 0, 0, 1]), 2)
    tensor([1.5000, 0.5000])
    """
    flat = chosen.reshape(-1, 1)
    counts = (flat == torch.arange(experts, device=flat.device)).sum(0)
    return counts.float() * (experts / flat.shape[0])


def _work(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
