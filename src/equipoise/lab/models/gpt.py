"""A GPT as nanoGPT has it: learnt positions, no biases, the output layer tied or not."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data
from equipoise.lab.models.transformer import TransformerLayer, positions, start
from equipoise.optim import add_gains

SIZES = {
    "tiny": (2, 32, 2), "0.1M": (2, 64, 2), "0.4M": (2, 128, 4), "mini": (4, 128, 4), "3M": (4, 256, 4),
    "small": (6, 384, 6), "10M": (6, 384, 6), "124M": (12, 768, 12),
}  # fmt: skip
"""Depth, width, heads. Those named by a number have about so many parameters with bytes as tokens."""


@final
class Gpt(nn.Module):
    """Tokens → scores of the next token.

    Args:
        tokens: size of the vocabulary.
        length: longest sequence.
        depth: number of layers.
        width: of the tokens.
        heads: of each attention.
        qk_norm: normalise queries and keys.
        tied: the output layer is the table of tokens.
        norm: with LayerNorm; False leaves all norms out but the last.
        std: of the initial weights; GPT-2's is 1/√width at a width of 2500, and small networks learn slowly from it.
    """

    def __init__(
        self, tokens: int, length: int, depth: int, width: int, heads: int, *, qk_norm: bool = False,
        tied: bool = False, norm: bool = True, std: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, causal=True, qk_norm=qk_norm, norm=norm) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, tokens, bias=False)
        start(self, depth, std)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores [batch, length, tokens]."""
        x = self.tokens(x) + positions(self.positions, x.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt(
    data: Data, *, size: str = "tiny", depth: int | None = None, width: int | None = None, heads: int | None = None,
    qk_norm: bool = False, tied: bool = False, norm: bool = True, gains: bool = False,
    std: float = 0.02,
) -> Gpt:  # fmt: skip
    """A GPT for tokens.

    Args:
        data: of the task "tokens".
        size: one of `SIZES`.
        depth: layers, where not the size's own.
        width: of tokens, where not the size's own.
        heads: where not the size's own.
        qk_norm: normalise queries and keys.
        tied: the output layer is the table of tokens.
        norm: with LayerNorm.
        std: of the initial weights.
        gains: a learnable gain for each neuron of the linear layers, as [kosson2024] gives rotational variants.
    """
    own = SIZES[_check.choice("size", size, SIZES)]
    d, w, h = (a or b for a, b in zip((depth, width, heads), own, strict=True))
    model = Gpt(data.outputs, data.info["length"], d, w, h, qk_norm=qk_norm, tied=tied, norm=norm, std=std)
    if gains:
        add_gains(model)
    return model
