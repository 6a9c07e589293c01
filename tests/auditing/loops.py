"""Small models, and loops that train them for some steps under an audit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from equipoise.auditing import Audit, audit

STEPS = 12
WIDTH, CLASSES = 12, 6


class Attention(nn.Module):
    """Tokens, one block and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        n = self.norm(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        h = h + self.down(nn.functional.gelu(self.up(h)))
        return self.head(h.mean(1))


class Experts(nn.Module):
    """A router and experts as one tensor of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.Parameter(0.3 * torch.randn(4, WIDTH, 2 * WIDTH))
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = torch.einsum("bi,eio->beo", x, self.experts).relu()
        return self.head((self.router(x).softmax(-1)[..., None] * each).sum(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, CLASSES))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def wide() -> nn.Module:
    """One whose matrices have entries enough to tell decay in bfloat16."""
    return nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "conv": conv, "linear": linear, "attention": Attention, "experts": Experts,
}  # fmt: skip


def made(model: str = "mlp", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return wide() if model == "wide" else MODELS[model]()


def batch(model: nn.Module, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = isinstance(getattr(model, "_orig_mod", model), Attention)
    x = torch.randint(20, (16, 5), generator=generator) if tokens else torch.randn(16, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (16,), generator=generator)


def loss_of(model: nn.Module, generator: torch.Generator, given: torch.Tensor | None = None) -> torch.Tensor:
    x, y = batch(model, generator)
    x = x if given is None else given
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(x if x.dtype == torch.long else x.to(dtype)).float(), y)


class Loop:
    """A training loop whose parts can be replaced, to plant a fault.

    Args:
        model: what is trained.
        optimizer: what steps.
        zero: what zeroes gradients.
        passes: backward passes a step.
        after: what happens between backward and step.
        end: what happens after each step.
        each: what happens after each backward pass.
        batches: makes the inputs, where a wrapper hides which model it is.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, *, zero: Callable[[], Any] | None = None, passes: int = 1,
        after: Callable[[], Any] = lambda: None, end: Callable[[], Any] = lambda: None,
        each: Callable[[], Any] = lambda: None, backward: Callable[[torch.Tensor], Any] | None = None,
        step: Callable[[], Any] | None = None, seed: int = 1, batches: Callable[[], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.passes = model, optimizer, passes
        self.after, self.end, self.each = after, end, each
        self.zero = optimizer.zero_grad if zero is None else zero
        self.step = (lambda: optimizer.step()) if step is None else step
        self.backward = (lambda loss: loss.backward()) if backward is None else backward
        self.batches = batches
        self.generator = torch.Generator().manual_seed(seed)

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.zero()
            for _ in range(self.passes):
                x = None if self.batches is None else self.batches()
                self.backward(loss_of(self.model, self.generator, x) / self.passes)
                self.each()
            self.after()
            self.step()
            self.end()


def audited(loop: Loop, *, steps: int = STEPS, optimizer: Any = None, model: Any = None, warm: int = 0) -> Audit:
    """Train under an audit, after `warm` steps without one."""
    loop.run(warm)
    with audit(loop.model if model is None else model, loop.optimizer if optimizer is None else optimizer,
               steps=steps) as seen:  # fmt: skip
        loop.run(steps)
    return seen


def warned(seen: Audit) -> list[str]:
    return [f.code for f in seen.findings if f.severity != "info"]
