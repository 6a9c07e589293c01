"""The measurement behind `scale_invariance`: gradients at a few points, three numbers for each row of each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

PROBES = 5
"""Points at which the gradients are looked at: the weights as they are, and four near them."""


class Probes:
    """The measurement: what was seen of every tensor's rows at each point, and what follows from it."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        closure: Callable[[], Tensor],
        rewind: Callable[[], None],
        tolerance: float,
        generator: torch.Generator,
    ):
        self.params, self.closure, self.rewind = params, closure, rewind
        self.tolerance, self.generator = tolerance, generator
        self.eps = max(torch.finfo(p.dtype).eps for p in params.values())
        self.seen: list[dict[str, Tensor]] = []
        """At each point, for each tensor and row: ⟨g,w⟩, ‖g‖², ‖w‖²."""
        self.loss = 0.0

    def evaluate(self, *, gradients: bool) -> float:
        """The loss at the weights as they are now; their gradients, if wanted, are left in `.grad`."""
        for p in self.params.values():
            p.grad = None
        with torch.enable_grad():
            loss: Any = self.closure()
            if not torch.is_tensor(loss) or loss.numel() != 1:
                what = f"tensor of shape {tuple(loss.shape)}" if torch.is_tensor(loss) else repr(loss)
                raise ValueError(f"closure returned {what}: must be a tensor with one number, the loss")
            # A closure as optimizers take it has run backward itself.
            if gradients and all(p.grad is None for p in self.params.values()):
                if not loss.requires_grad:
                    raise ValueError("closure returned a loss without gradient: must depend on the model's parameters")
                loss.backward()
        value = float(loss.detach())
        self.rewind()
        return value

    def probe(self) -> None:
        """Look at the gradients at the weights and at points near them."""
        self.loss = self.evaluate(gradients=True)
        if not math.isfinite(self.loss):
            raise ValueError(f"closure returned {self.loss}: must be a finite loss")
        self.look()
        again = self.evaluate(gradients=False)
        if abs(again - self.loss) > 1e3 * self.eps * abs(self.loss):
            raise ValueError(
                f"closure returned {self.loss:.6g} and then {again:.6g} for the same weights: must be deterministic; "
                "use one fixed batch"
            )
        for _ in range(PROBES - 1):
            with self.moved(self.nearby()):
                if math.isfinite(self.evaluate(gradients=True)):
                    self.look()
        if len(self.seen) < 3:
            raise ValueError(
                "closure: the loss is not finite near the weights; must be finite when they change by half"
            )

    def nearby(self) -> dict[str, Tensor]:
        """Weights with every row scaled by a random factor in [1/2, 2] and turned a little."""

        def draw(shape: Sequence[int], like: Tensor) -> Tensor:
            return torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64).to(like)

        points = {}
        for name, p in self.params.items():
            w = p.detach()
            rows = _rows(w)
            factors = torch.rand(rows.shape[0], 1, generator=self.generator, dtype=torch.float64).mul(2).sub(1).exp2()
            size = rows.norm() / math.sqrt(rows.numel())
            size = size if size > 0 else torch.full_like(size, 0.3)  # what starts at zero does not stay there
            points[name] = (rows * factors.to(rows) + 0.2 * size * draw(rows.shape, rows)).reshape(p.shape)
        return points

    def moved(self, points: Mapping[str, Tensor]) -> TemporaryWeights:
        """Other weights for a while."""
        return TemporaryWeights({self.params[name]: value for name, value in points.items()})

    def look(self) -> None:
        """Keep what is needed of weights and gradients: three numbers for each row."""
        now = {}
        for name, p in self.params.items():
            w = p.detach().double().reshape(p.shape[0] if p.ndim else 1, -1)
            g = torch.zeros_like(w) if p.grad is None else p.grad.detach().to_dense().double().reshape(w.shape)
            now[name] = torch.stack([(g * w).sum(1), g.square().sum(1), w.square().sum(1)]).cpu()
        if all(torch.isfinite(v).all() for v in now.values()):
            self.seen.append(now)

    def cosines(self, name: str, parts: int, bias: str | None = None) -> tuple[Tensor, Tensor]:
        """The largest |cos(g, w)| of each part over the points, and which parts are dead at all of them."""
        worst, alive = torch.zeros(parts, dtype=torch.float64), torch.zeros(parts, dtype=torch.bool)
        # Rounding is no gradient. It shows where gradients cancel, in biases before a norm or a softmax.
        floor = (30 if is_vector(self.params[name].shape) else 0.1) * self.eps
        for now in self.seen:
            sums = now[name] if bias is None else now[name] + now[bias]
            dot, gg, ww = sums.reshape(3, parts, -1).sum(2)
            sizes = (gg * ww).sqrt()
            most = max(float((v[1] * v[2]).max().sqrt()) for v in now.values())
            live = sizes > most * floor
            worst = torch.where(live, torch.maximum(worst, dot.abs() / sizes.clamp_min(1e-300)), worst)
            alive |= live
        return worst, ~alive

    def bias_of(self, name: str) -> str | None:
        """The bias beside a weight, if it has one number for each row."""
        head, _, short = name.rpartition(".")
        bias = f"{head}.bias" if head else "bias"
        if short != "weight" or bias not in self.params or is_vector(self.params[name].shape):
            return None
        return bias if self.params[bias].shape == self.params[name].shape[:1] else None

    def rows(self, name: str) -> int:
        """The size of the first dimension."""
        return self.seen[0][name].shape[1]

    def finest(self, name: str, rows: int, bias: str | None) -> int | None:
        """The largest number of equal parts of the rows that are all invariant, if any."""
        for parts in sorted((d for d in range(1, rows + 1) if rows % d == 0), reverse=True):
            if bool((self.cosines(name, parts, bias)[0] <= self.tolerance).all()):
                return parts
        return None

    def can_scale(self, parts: Mapping[str, int], with_bias: Sequence[str]) -> bool:
        """Whether the loss stays when that many parts of each tensor are really scaled, by 1/2 or 2 at random."""
        for _ in range(2):
            points, allowed = {}, 1e3 * self.eps * abs(self.loss)
            for name, count in parts.items():
                factors = torch.randint(0, 2, (count, 1), generator=self.generator).mul(2).sub(1).double().exp2()
                bias = self.bias_of(name) if name in with_bias else None
                for scaled in (name, bias) if bias else (name,):
                    p = self.params[scaled].detach()
                    points[scaled] = (p.reshape(count, -1) * factors.to(p)).reshape(p.shape)
                    # ΔL = ∫⟨g, w⟩ d ln s, and |⟨g, w⟩| ≤ tolerance·‖g‖‖w‖; the sizes at the points stand for the path.
                    sizes = max(float((now[scaled][1] * now[scaled][2]).sqrt().sum()) for now in self.seen)
                    allowed += 10 * self.tolerance * math.log(2) * sizes
            with self.moved(points):
                change = abs(self.evaluate(gradients=False) - self.loss)
            if not change <= allowed:  # also if it is not a number
                return False
        return True


class TemporaryWeights:
    """Other weights for a while."""

    def __init__(self, points: Mapping[Any, Tensor]):
        self.points = points
        self.before = [(p, p.detach().clone()) for p in points]

    def __enter__(self) -> None:
        for p, value in self.points.items():
            p.data.copy_(value)

    def __exit__(self, *_: object) -> None:
        for p, value in self.before:
            p.data.copy_(value)


def is_vector(shape: Sequence[int]) -> bool:
    """Whether rows have one weight each, as in gains and biases: no row has a direction then, only the whole."""
    return math.prod(shape) == (shape[0] if shape else 1)


def _rows(w: Tensor) -> Tensor:
    """Rows of the first dimension; a gain or a bias is one row."""
    return w.reshape(1 if is_vector(w.shape) else w.shape[0], -1)
