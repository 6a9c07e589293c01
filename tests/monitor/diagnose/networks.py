"""Networks and made-up data that reach equilibrium within a few hundred steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn


class Cnn(nn.Module):
    """Three convolutions with batch normalisation, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 12, 24, 24)
        parts: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(widths)):
            parts += [nn.Conv2d(a, b, 3, stride=1 + (i > 0), padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP, both after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (nn.functional.layer_norm(z, z.shape[-1:]) for z in (q, k))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """Two blocks, learnt positions, an output layer of its own."""

    def __init__(self, tokens: int = 32, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def images(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Noise, labelled by a random network."""
    g = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(2000, 1, 8, 8, generator=g)
    hidden = torch.randn(64, 32, generator=g) / 8
    scores = torch.relu(x.flatten(1) @ hidden) @ torch.randn(32, 10, generator=g)
    y = (scores + torch.randn(2000, 10, generator=g)).argmax(1)
    while True:
        batch = torch.randint(2000, (64,), generator=g)
        yield x[batch], y[batch]


def text(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A random Markov chain: the next token follows from the last two, through a random network."""
    g = torch.Generator().manual_seed(2000 + seed)
    one, two = torch.randn(32, 64, generator=g), torch.randn(32, 64, generator=g)
    pairs = torch.relu(one[:, None] + two)
    table = torch.softmax(0.6 * pairs @ torch.randn(64, 32, generator=g), -1)
    x = torch.randint(32, (2000, 33), generator=g)
    for t in range(2, 33):
        x[:, t] = torch.multinomial(table[x[:, t - 2], x[:, t - 1]], 1, generator=g)[:, 0]
    while True:
        batch = x[torch.randint(2000, (12,), generator=g)]
        yield batch[:, :-1], batch[:, 1:]
