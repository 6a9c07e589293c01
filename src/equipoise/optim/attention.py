"""Attention logits held below a limit, by weights of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise import _check


@final
class QKClip:
    """After each step, makes queries and keys of those heads smaller whose largest logit was above a limit.

        γ_h = min(1, τ/S_h),   w_q ← √γ_h·w_q,   w_k ← √γ_h·w_k

    for each head h, S_h its largest logit in the batch. It works beside any optimizer, on its step. Where several heads
    share keys, these take the smallest √γ of their heads, and queries the rest. Ranks take the largest logit of all.

    Deviation: the paper has rotary parts that all heads share, which it leaves alone; here all rows of a head are one
    part.

    Args:
        optimizer: whose steps it follows.
        layers: by name, the weights of queries and of keys, (heads · size, inputs) each. Views of a parameter do:
            `qkv.weight.detach()[:d]`.
        heads: number of query heads.
        limit: τ.

    Reference: [kimi2025] 2.1, QK-Clip.

    >>> q, k = (torch.nn.Parameter(torch.full((2, 3), 2.0)) for _ in "qk")
    >>> optimizer = torch.optim.SGD([q, k], lr=0.0)
    >>> clip = QKClip(optimizer, {"attention": (q, k)}, heads=2, limit=100.0)
    >>> clip.note("attention", torch.tensor([400.0, 50.0]))
    >>> optimizer.step()
    >>> q[:, 0].tolist(), k[:, 0].tolist(), clip.clipped
    ([1.0, 2.0], [1.0, 2.0], {'attention': 1})
    """

    def __init__(
        self, optimizer: Any, layers: Mapping[str, tuple[Tensor, Tensor]], *, heads: int, limit: float = 100.0
    ):
        self.heads = _check.whole("heads", heads, low=1)
        self.limit = _check.number("limit", limit, low=0, open_low=True)
        self.layers = dict(layers)
        for name, (q, k) in self.layers.items():
            size = len(q) // heads
            if len(q) % heads or not size or len(k) % size or heads % max(1, len(k) // size):
                raise ValueError(
                    f"layers[{name!r}] has {len(q)} rows of queries and {len(k)} of keys: must be {heads} heads of "
                    "one size, and a number of key heads that divides theirs"
                )
        self._clipped: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._hook = optimizer.register_step_post_hook(self._clip)

    @property
    def clipped(self) -> dict[str, int]:
        """How many heads the last step with a logit clipped, by layer."""
        return {name: int(self._clipped.get(name, 0)) for name in self.layers}

    def note(self, name: str, largest: Tensor) -> None:
        """Say the largest logit of each head; call it in the forward pass, as often as there is one before the step.

        Args:
            name: of the layer.
            largest: S_h, a tensor of `heads` numbers.
        """
        _check.choice("name", name, self.layers)
        if tuple(largest.shape) != (self.heads,):
            raise ValueError(
                f"largest has the shape {tuple(largest.shape)}: must be one number for each of {self.heads} heads"
            )
        known = self._largest.get(name)
        largest = largest.detach().float()
        self._largest[name] = largest if known is None else torch.maximum(known, largest)

    @torch.no_grad()
    def see(
        self, name: str, queries: Tensor, keys: Tensor, *, scale: float | None = None, causal: bool = False
    ) -> None:
        """Find the largest logits; it costs the scores of attention once more.

        Args:
            name: of the layer.
            queries: as attention takes them, (batch, heads, length, size).
            keys: likewise, with as many heads or fewer.
            scale: of the logits. Default: 1/√size.
            causal: whether a query sees no later key.
        """
        keys = keys.repeat_interleave(queries.shape[-3] // keys.shape[-3], dim=-3)
        logits = queries @ keys.mT * (queries.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        self.note(name, logits.movedim(-3, 0).flatten(1).amax(1))

    def remove(self) -> None:
        """Clip no more."""
        self._hook.remove()

    @torch.no_grad()
    def _clip(self, *_: Any) -> None:
        for name, largest in self._largest.items():
            if dist.is_available() and dist.is_initialized():
                dist.all_reduce(largest, dist.ReduceOp.MAX)
            gamma = (self.limit / largest.clamp_min(self.limit)).nan_to_num(1.0)
            q, k = self.layers[name]
            size = len(q) // self.heads
            shared = gamma.sqrt().reshape(len(k) // size, -1)
            of_keys = shared.amin(1, keepdim=True)
            of_queries = gamma.reshape(shared.shape) / of_keys
            q.detach().mul_(of_queries.flatten().to(q).repeat_interleave(size).unsqueeze(1))
            k.detach().mul_(of_keys.flatten().to(k).repeat_interleave(size).unsqueeze(1))
            self._clipped[name] = (gamma < 1).sum()
        self._largest = {}
