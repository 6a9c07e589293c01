"""Which tensors and neurons of a model are scale-invariant: measured, not read off its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from equipoise.optim.groups import rendered
from equipoise.optim.kept import kept
from equipoise.optim.rules import as_rows
from equipoise.theory import _check

Granularity = str | int | None
PROBES = 5
"""Points at which the gradients are looked at: the weights as they are, and four near them."""


@final
@dataclass(frozen=True, eq=False)
class TensorInvariance:
    """What was found about one tensor."""

    name: str
    shape: tuple[int, ...]
    granularity: Granularity
    """"neuron" (each row can be scaled on its own), the number of equal parts that can, "tensor" (only the whole), or
    None. What optimizers take as `granularity`."""
    with_bias: bool
    """Whether it is invariant only if its module's bias is scaled with it, as before a LayerNorm."""
    neurons: Tensor
    """Which rows are invariant on their own."""
    dead: Tensor
    """Which rows the loss does not depend on at all, such as tokens that the batch lacks or a bias before a BatchNorm."""
    residual: float
    """Largest |cos(gradient, weight)| over its parts: 0 where it is invariant, as the gradient is tangent to the
    sphere. Of the whole tensor where it is not."""

    @property
    def share(self) -> float:
        """Share of the rows, dead ones left out, that are invariant on their own."""
        alive = int((~self.dead).sum())
        return int(self.neurons.sum()) / alive if alive else 0.0


@final
@dataclass(frozen=True, eq=False)
class Invariance(Mapping[str, TensorInvariance]):
    """What `scale_invariance` found, by the names of the parameters. Prints as a table."""

    tensors: dict[str, TensorInvariance]
    tolerance: float

    def __getitem__(self, name: str) -> TensorInvariance:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def invariant(self) -> dict[str, str | int]:
        """The granularity of every tensor that is scale-invariant."""
        return {t.name: t.granularity for t in self.values() if t.granularity is not None}

    def __rich__(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
        table.add_column("tensor", overflow="fold")
        table.add_column("shape", no_wrap=True)
        table.add_column("scale-invariant")
        for name in ("neurons", "dead", "residual"):
            table.add_column(name, justify="right", no_wrap=True)
        hidden = 0
        for t in self.values():
            if len(t.shape) < 2 and t.granularity is None:
                hidden += 1
                continue
            what = {None: "no", "neuron": "each neuron", "tensor": "as a whole"}.get(t.granularity)
            what = (what or f"{t.granularity} parts") + (", with its bias" if t.with_bias else "")
            dead = int(t.dead.sum())
            counts = (f"{t.share:.0%}", str(dead) if dead else "", "" if math.isnan(t.residual) else f"{t.residual:.1e}")
            table.add_row(Text(t.name), "×".join(map(str, t.shape)), what, *counts)
        notes = [Text(f"and {hidden} gains and biases that are not invariant", style="dim")] if hidden else []
        return Group(table, *notes)

    def __str__(self) -> str:
        return rendered(self)


def scale_invariance(
    model: nn.Module, closure: Callable[[], Tensor], *, tolerance: float = 1e-3, seed: int = 0
) -> Invariance:
    """Measure which tensors and neurons can be scaled without changing the loss, and at which granularity.

    L(s·w) = L(w) for all s > 0 means ⟨∂L/∂w, w⟩ = 0 at every w (Euler). So the gradient is taken at the weights and at
    four random points near them, where rows are scaled by factors in [1/2, 2] and turned a little; a part is invariant if
    |cos(∂L/∂w, w)| ≤ `tolerance` at all of them. One backward pass shows all rows of all tensors. What was found is then
    really scaled, by 1/2 and 2 at random, and the loss compared.

    A norm's eps makes invariance approximate: the residual is about eps over the variance of what is normalised, which
    the tolerance allows for. float32 serves; `model.double()` with double inputs is sharper. Rows are those of the first
    dimension: before a BatchNorm, a transposed convolution is invariant as a whole, as its outputs lie in the second.

    Weights, gradients, buffers, training mode and random states are put back bit by bit, also if the closure raises.

    Args:
        model: the model, in float32 or float64, in the mode to be looked at: a BatchNorm that evaluates with its running
            statistics makes nothing invariant.
        closure: computes the loss on a fixed batch and returns it; dropout gets the same random state every time.
        tolerance: on |cos(gradient, weight)|.
        seed: of the random points.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    >>> x = torch.randn(32, 6, dtype=torch.float64)
    >>> scale_invariance(model, lambda: model(x).square().mean()).invariant
    {'0.weight': 'neuron'}
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {type(model).__name__}: must be a torch.nn.Module")
    if not callable(closure):
        raise ValueError(f"closure = {closure!r}: must be a function that returns the loss")
    tolerance = _check.number("tolerance", tolerance, low=0, high=1, open_low=True)
    params = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    if not params:
        raise ValueError(f"model = {type(model).__name__}: must have at least one parameter that takes a gradient")
    for name, p in params.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} is in {p.dtype}: must be float32 or float64; convert the model for the measurement")
    with kept(model) as rewind:
        work = _Work(params, closure, rewind, tolerance, torch.Generator().manual_seed(_check.whole("seed", seed)))
        work.probe()
        found = {name: work.judge(name) for name in params}
        refuted = work.refuted({n: t for n, t in found.items() if t.granularity is not None})
    for name in refuted:
        found[name] = work.judge(name, parts_allowed=False)
    return Invariance(found, tolerance)


class _Work:
    """The measurement: what was seen of every tensor's rows at each point, and what follows from it."""

    def __init__(
        self,
        params: dict[str, Tensor],
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
        value = float(loss)
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
            raise ValueError("closure: the loss is not finite near the weights; must be finite when they change by half")

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

    def moved(self, points: Mapping[str, Tensor]) -> _Moved:
        return _Moved({self.params[name]: value for name, value in points.items()})

    def look(self) -> None:
        """Keep what is needed of weights and gradients: three numbers for each row."""
        now = {}
        for name, p in self.params.items():
            w = _rows(p.detach()).double()
            g = torch.zeros_like(w) if p.grad is None else _rows(p.grad.detach().to_dense()).double()
            now[name] = torch.stack([(g * w).sum(1), g.square().sum(1), w.square().sum(1)]).cpu()
        if all(torch.isfinite(v).all() for v in now.values()):
            self.seen.append(now)

    def cosines(self, name: str, parts: int, bias: str | None = None) -> tuple[Tensor, Tensor]:
        """The largest |cos(g, w)| of each part over the points, and which parts are dead at all of them."""
        worst, alive = torch.zeros(parts, dtype=torch.float64), torch.zeros(parts, dtype=torch.bool)
        single = self.params[name].ndim > 1 and self.params[name].numel() == self.seen[0][name].shape[1]
        for now in self.seen:
            sums = now[name] if bias is None else now[name] + now[bias].reshape(3, -1)
            dot, gg, ww = sums.reshape(3, parts, -1).sum(2)
            sizes = (gg * ww).sqrt()
            most = max(float((v[1] * v[2]).max().sqrt()) for v in now.values())
            # Rounding is no gradient. A row of one weight has no tangent: if invariant, it has only what eps leaves.
            live = sizes > most * (self.tolerance if single else 100 * self.eps)
            worst = torch.where(live, torch.maximum(worst, dot.abs() / sizes.clamp_min(1e-300)), worst)
            alive |= live
        return worst, ~alive

    def bias_of(self, name: str) -> str | None:
        """The bias beside a weight, if it has one number for each row."""
        head, _, short = name.rpartition(".")
        bias = f"{head}.bias" if head else "bias"
        if short != "weight" or bias not in self.params:
            return None
        return bias if self.params[bias].shape == self.params[name].shape[:1] else None

    def judge(self, name: str, *, parts_allowed: bool = True) -> TensorInvariance:
        """The finest granularity at which every living part is invariant."""
        p = self.params[name]
        rows = self.seen[0][name].shape[1]
        cosine, dead = self.cosines(name, rows)
        neurons = (cosine <= self.tolerance) & ~dead
        granularity, with_bias, residual = None, False, float(self.cosines(name, 1)[0])
        if bool(dead.all()):
            residual = math.nan
        elif parts_allowed:
            for bias in (None, self.bias_of(name)):
                parts = self.finest(name, rows, bias)
                if parts is not None and granularity is None:
                    granularity = "tensor" if parts == 1 else "neuron" if parts == rows else parts
                    with_bias, residual = bias is not None, float(self.cosines(name, parts, bias)[0].max())
        else:
            neurons = torch.zeros_like(neurons)
        return TensorInvariance(name, tuple(p.shape), granularity, with_bias, neurons, dead, residual)

    def finest(self, name: str, rows: int, bias: str | None) -> int | None:
        for parts in sorted((d for d in range(1, rows + 1) if rows % d == 0), reverse=True):
            if bool((self.cosines(name, parts, bias)[0] <= self.tolerance).all()):
                return parts
        return None

    def refuted(self, found: Mapping[str, TensorInvariance]) -> list[str]:
        """Those that change the loss when they are really scaled, by more than their residuals allow."""
        if not found or self.holds(found):
            return []
        return [name for name, t in found.items() if not self.holds({name: t})]

    def holds(self, found: Mapping[str, TensorInvariance]) -> bool:
        for _ in range(2):
            points, allowed = {}, 1e3 * self.eps * abs(self.loss)
            for name, t in found.items():
                parts = {"tensor": 1, "neuron": t.shape[0] if len(t.shape) > 1 else 1}.get(str(t.granularity))
                parts = int(t.granularity) if parts is None and t.granularity is not None else parts or 1
                signs = torch.randint(0, 2, (parts, 1), generator=self.generator).mul(2).sub(1)
                bias = self.bias_of(name) if t.with_bias else None
                for scaled in (name, bias) if bias else (name,):
                    p = self.params[scaled].detach()
                    points[scaled] = (p.reshape(parts, -1) * signs.double().exp2().to(p)).reshape(p.shape)
                    # ΔL = ∫⟨g, w⟩ d ln s, and |⟨g, w⟩| ≤ tolerance·‖g‖‖w‖; the sizes at the points stand for the path.
                    sizes = max(float((now[scaled][1] * now[scaled][2]).sqrt().sum()) for now in self.seen)
                    allowed += 10 * self.tolerance * math.log(2) * sizes
            with self.moved(points):
                change = abs(self.evaluate(gradients=False) - self.loss)
            if not change <= allowed:
                return False
        return True


class _Moved:
    """Other weights for a while."""

    def __init__(self, points: Mapping[Any, Tensor]):
        self.points = points
        self.before = [(p, p.detach().clone()) for p in points]

    @torch.no_grad()
    def __enter__(self) -> None:
        for p, value in self.points.items():
            p.copy_(value)

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        for p, value in self.before:
            p.copy_(value)


def _rows(w: Tensor) -> Tensor:
    """Rows of the first dimension; a gain or a bias is one row."""
    return as_rows(w, "neuron") if w.ndim > 1 else w.reshape(1, -1)
