"""Small networks of many kinds, whose forward pass the tests look at."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from equipoise.lab.models import Gpt


class Written(nn.Module):
    """Attention that is written out, with a GELU after it, between shortcuts."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(0.1)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf), v

    def forward(self, x: Tensor) -> Tensor:
        logits, v = self.logits(x)
        y = (functional.softmax(logits, dim=-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.drop(y)
        return x + self.mlp(x)


class Experts(nn.Module):
    """A router that sends each token to two of several experts."""

    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True)
        return x + y


class Convolutions(nn.Module):
    """Convolutions with batch normalisation, activations as functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.second, self.head = nn.Conv2d(6, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        return self.head(self.second(x).relu_().mean((2, 3)).tanh())


class Stack(nn.Module):
    """Layers one after the other, checkpointed or not."""

    def __init__(self, make: Callable[[], nn.Module], depth: int = 2, how: str = "") -> None:
        super().__init__()
        self.layers, self.how = nn.ModuleList(make() for _ in range(depth)), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "reentrant":  # which has gradients only if its input has
            x = x.clone().requires_grad_()
        for layer in self.layers:
            if self.how == "reentrant":
                x = checkpoint(layer, x, use_reentrant=True)
            elif self.how == "not reentrant":
                x = checkpoint(layer, x, use_reentrant=False)
            elif self.how == "selective":
                x = checkpoint(layer, x, use_reentrant=False, context_fn=_kept_products)
            else:
                x = layer(x)
        return x


def _kept_products():
    kept = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)

    def policy(_: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "gpt": (lambda: Gpt(11, 8, 2, 16, 2), lambda g: torch.randint(11, (4, 8), generator=g)),
    "written": (lambda: Stack(Written), lambda g: torch.randn(4, 8, 16, generator=g)),
    "encoder": (encoder, lambda g: torch.randn(4, 8, 16, generator=g)),
    "experts": (lambda: Stack(Experts), lambda g: torch.randn(4, 8, 16, generator=g)),
    "convolutions": (Convolutions, lambda g: torch.randn(4, 1, 9, 9, generator=g)),
    "reentrant": (lambda: Stack(Written, how="reentrant"), lambda g: torch.randn(4, 8, 16, generator=g)),
    "not reentrant": (lambda: Stack(Written, how="not reentrant"), lambda g: torch.randn(4, 8, 16, generator=g)),
    "selective": (lambda: Stack(Written, how="selective"), lambda g: torch.randn(4, 8, 16, generator=g)),
}
"""By name: what makes the network, and what makes its batch."""
