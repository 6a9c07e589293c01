"""The parts of transformers: attention, with normalised queries and keys or not, and the MLP."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipoise import _check


@final
class Attention(nn.Module):
    """Attention of many heads, to itself or to another sequence.

    Args:
        width: of the tokens.
        heads: how many.
        causal: tokens do not see later ones.
        qk_norm: RMS-normalise queries and keys in each head, with a learnt gain.
        bias: of the linear layers.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, qk_norm: bool = False, bias: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads = {heads}: must divide width = {width}")
        self.heads, self.causal = heads, causal
        self.q, self.kv = nn.Linear(width, width, bias=bias), nn.Linear(width, 2 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        size = width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(size) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, other: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Tokens after attention; `mask` is true where `other` may be seen."""
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x if other is None else other).view(batch, -1, 2, self.heads, width // self.heads).unbind(2)
        q, k = self.norms[0](q), self.norms[1](k.transpose(1, 2))
        seen = None if mask is None else mask[:, None, None, :]
        y = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), attn_mask=seen, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


@final
class TransformerLayer(nn.Module):
    """Attention, attention to another sequence where `cross`, and the MLP, each after a norm and beside a shortcut."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, qk_norm: bool = False, cross: bool = False, bias: bool = False,
        norm: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()

        def make() -> nn.Module:
            return nn.LayerNorm(width, bias=bias) if norm else nn.Identity()

        self.norm_1, self.norm_2 = make(), make()
        self.attention = Attention(width, heads, causal=causal, qk_norm=qk_norm, bias=bias)
        self.norm_cross = make() if cross else None
        self.cross = Attention(width, heads, causal=False, qk_norm=qk_norm, bias=bias) if cross else None
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor, other: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Tokens after the layer; `mask` is of `other` where there is one, else of x."""
        x = x + self.attention(self.norm_1(x), mask=mask if other is None else None)
        if self.cross is not None and self.norm_cross is not None:
            x = x + self.cross(self.norm_cross(x), other, mask)
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


def start(model: nn.Module, depth: int, std: float = 0.02) -> None:
    """GPT-2's initialisation: `std`, and less by √(2·depth) for layers that write into the residual stream."""
    _check.whole("depth", depth, low=1)
    _check.number("std", std, low=0, open_low=True)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            last = name.endswith((".out", ".down"))
            nn.init.normal_(module.weight, std=std / ((2 * depth) ** 0.5 if last else 1))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)


def positions(table: nn.Embedding, length: int) -> Tensor:
    """The first rows of a table of learnt positions."""
    if length > table.num_embeddings:
        raise ValueError(f"a sequence has {length} tokens: must have at most {table.num_embeddings}")
    return table(torch.arange(length, device=table.weight.device))
