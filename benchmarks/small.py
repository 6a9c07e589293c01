"""A step of a small model against its forward and backward, for every class with its defaults: `small.py [--write]`.

A model of some 0.8 M weights is trained at batch 32. Its step shall not take longer than the gradients that it uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from machine import device, features
from timing import medians
from torch import Tensor, nn

import equipoise as eq

PAGE = Path(__file__).parents[1] / "docs" / "optim.md"
CLASSES = (
    "SGDM", "RMSProp", "Adam", "AdamW", "SignSGDM", "Lion", "NormalizedGD", "Muon", "SteepestDescent",
    "RotationalSGDM", "RotationalAdamW", "RotationalAdamL2", "RotationalLion", "RotationalSignSGDM", "RotationalMuon",
    "HyperballAdamW", "HyperballMuon", "AdamCPR",
)  # fmt: skip
BATCH = 32


class Deep(nn.Module):
    """200 matrices of 64², each with a normalisation before it and a way round it: as many tensors as there can be."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(200))

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output."""
        for layer in self.layers:
            x = x + layer(nn.functional.layer_norm(x, (64,)))
        return x


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the MLP."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def mlp() -> tuple[nn.Module, Tensor]:
    sizes = [784, 512, 512, 256, 10]
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(BATCH, 784)


def gpt() -> tuple[nn.Module, Tensor]:
    blocks = [Block(128, 4) for _ in range(4)]
    return nn.Sequential(nn.Embedding(65, 128), *blocks, nn.LayerNorm(128), nn.Linear(128, 65)), torch.randint(
        65, (BATCH, 64)
    )


def deep() -> tuple[nn.Module, Tensor]:
    return Deep(), torch.randn(BATCH, 64)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "200 matrices 64²": deep, "MLP of 4 layers": mlp, "GPT of 4 blocks": gpt,
}  # fmt: skip


def ratios(make: Callable[[], tuple[nn.Module, Tensor]], rounds: int) -> tuple[int, dict[str, float]]:
    """Time of each class's step over that of forward and backward, and how many weights there are."""
    model, x = make()
    model, x = model.to(device()), x.to(device())

    def gradients() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    gradients()
    jobs: dict[str, Callable[[], Any]] = {"gradients": gradients}
    for name in ("torch AdamW", "torch AdamW fused", *CLASSES):
        twin = make()[0].to(device())
        for p, q in zip(twin.parameters(), model.parameters(), strict=True):
            assert q.grad is not None
            p.grad = q.grad.clone()
        made = getattr(torch.optim if "torch" in name else eq, name.removeprefix("torch ").removesuffix(" fused"))
        jobs[name] = made(twin.parameters(), **({"fused": True} if "fused" in name else {})).step
    seconds = medians(jobs, rounds=rounds)
    first = seconds.pop("gradients")
    return sum(p.numel() for p in model.parameters()), {name: s / first for name, s in seconds.items()}


def main() -> None:
    torch.manual_seed(0)
    found = {name: ratios(make, rounds=20) for name, make in MODELS.items()}
    heads = [f"{name}, {count / 1e6:.2f} M weights" for name, (count, _) in found.items()]
    lines = [f"| step / forward and backward, batch {BATCH} | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in next(iter(found.values()))[1]:
        lines.append(f"| {name} | {' | '.join(f'{by[name]:.2f}' for _, by in found.values())} |")
    text = "\n".join([f"On {features()}:", "", *lines])
    print(text)
    if "--write" in sys.argv:
        page = PAGE.read_text()
        head, _, rest = page.partition("<!-- small -->\n")
        _, _, tail = rest.partition("<!-- /small -->")
        PAGE.write_text(f"{head}<!-- small -->\n{text}\n\n<!-- /small -->{tail}")


if __name__ == "__main__":
    main()
