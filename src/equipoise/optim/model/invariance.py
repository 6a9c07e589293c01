"""Measure which tensors and neurons of a model are scale-invariant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from equipoise import _check
from equipoise.optim.model.groups import rendered
from equipoise.optim.model.probes import Probes, is_vector
from equipoise.optim.model.restore import kept
from equipoise.optim.model.roles import bare

if TYPE_CHECKING:
    from rich.console import RenderableType

Granularity = str | int | None


@final
@dataclass(frozen=True, eq=False)
class TensorInvariance:
    """The result for one tensor."""

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
    """Which rows the loss does not depend on at all: tokens that the batch lacks, a bias before a BatchNorm."""
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
    """The result of `scale_invariance`, by parameter name. Prints as a table."""

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
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
        table.add_column("tensor", overflow="fold")
        table.add_column("shape", no_wrap=True)
        table.add_column("scale-invariant")
        for name in ("neurons", "dead", "residual"):
            table.add_column(name, justify="right", no_wrap=True)
        hidden = 0
        for t in self.values():
            if is_vector(t.shape) and t.granularity is None:
                hidden += 1
                continue
            what = {None: "no", "neuron": "each neuron", "tensor": "as a whole"}.get(t.granularity)
            what = (what or f"{t.granularity} parts") + (", with its bias" if t.with_bias else "")
            dead = int(t.dead.sum())
            counts = (
                f"{t.share:.0%}",
                str(dead) if dead else "",
                "" if math.isnan(t.residual) else f"{t.residual:.1e}",
            )
            table.add_row(Text(t.name), "×".join(map(str, t.shape)), what, *counts)
        notes = [Text(f"and {hidden} gains and biases that are not invariant", style="dim")] if hidden else []
        return Group(table, *notes)

    def __str__(self) -> str:
        return rendered(self)


def scale_invariance(
    model: nn.Module, closure: Callable[[], Tensor], *, tolerance: float = 1e-4, seed: int = 0
) -> Invariance:
    """Measure which tensors and neurons can be scaled without changing the loss, and at which granularity.

    L(s·w) = L(w) for all s > 0 means ⟨∂L/∂w, w⟩ = 0 at every w (Euler). So the function computes gradients at the
    weights and at four random points near them, where rows are scaled by factors in [1/2, 2] and rotated a little. A
    part is invariant if |cos(∂L/∂w, w)| ≤ `tolerance` at all of them. One backward pass covers all rows of all tensors.
    What was found is then scaled by 1/2 and 2 at random, and the loss compared.

    The eps of a normalisation makes invariance approximate: the residual is about eps over the variance of its input.
    So the `eps` of every module is reduced to a thousandth during the measurement, and the tolerance covers the rest.
    float32 works; `model.double()` with double inputs is more precise. Rows are those of the first dimension: before a
    BatchNorm, a transposed convolution is invariant only as a whole, because its outputs are the second dimension. Rows
    of one weight have no direction and are not told apart.

    Weights, gradients, buffers, training mode and random states are restored bit by bit, even if the closure raises.

    Args:
        model: the model, in float32 or float64, in the mode to measure: with a BatchNorm in evaluation mode nothing is
            invariant.
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
    params = {n: p for n, p in bare(model).named_parameters() if p.requires_grad and p.numel()}
    if not params:
        raise ValueError(f"model = {type(model).__name__}: must have at least one parameter that takes a gradient")
    for name, p in params.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} is in {p.dtype}: must be float32 or float64; convert the model for the measurement"
            )
    with kept(model) as rewind, _small_eps(model):
        work = Probes(params, closure, rewind, tolerance, torch.Generator().manual_seed(_check.whole("seed", seed)))
        work.probe()
        found = {name: _judge(work, name) for name in params}
        refuted = _refuted(work, {n: t for n, t in found.items() if t.granularity is not None})
    for name in refuted:
        none = torch.zeros_like(found[name].neurons)
        found[name] = replace(found[name], granularity=None, with_bias=False, neurons=none)
    return Invariance(found, tolerance)


def _judge(work: Probes, name: str) -> TensorInvariance:
    """The finest granularity at which every living part is invariant."""
    shape = tuple(work.params[name].shape)
    vector, rows = is_vector(shape), work.rows(name)
    cosine, dead = work.cosines(name, rows)
    neurons = torch.zeros_like(dead) if vector else (cosine <= work.tolerance) & ~dead
    if bool(dead.all()):
        return TensorInvariance(name, shape, None, False, neurons, dead, math.nan)
    ways = {bias: work.finest(name, 1 if vector else rows, bias) for bias in (None, work.bias_of(name))}
    bias, parts = max(ways.items(), key=lambda way: (way[1] or 0, way[0] is None))  # the finest, if possible alone
    if parts is not None:
        residual = float(work.cosines(name, parts, bias)[0].max())
        granularity = "tensor" if parts == 1 else "neuron" if parts == rows else parts
        return TensorInvariance(name, shape, granularity, bias is not None, neurons, dead, residual)
    return TensorInvariance(name, shape, None, False, neurons, dead, float(work.cosines(name, 1)[0]))


def _refuted(work: Probes, found: Mapping[str, TensorInvariance]) -> list[str]:
    """Parameters that change the loss when they are really scaled, by more than their residuals allow."""

    def holds(names: Iterable[str]) -> bool:
        scaled: dict[str, int] = {}
        for t in (found[name] for name in names):
            parts = {"tensor": 1, "neuron": t.shape[0]}.get(str(t.granularity), t.granularity)
            scaled[t.name] = int(parts or 1)
        return work.can_scale(scaled, [name for name in scaled if found[name].with_bias])

    return [] if not found or holds(found) else [name for name in found if not holds([name])]


@contextmanager
def _small_eps(model: nn.Module) -> Iterator[None]:
    """Every module's eps a thousand times smaller for a while."""
    found = [
        (m, name, value)
        for m in model.modules()
        for name in ("eps", "variance_epsilon")
        if isinstance(value := m.__dict__.get(name), float)
    ]
    try:
        for m, name, value in found:
            setattr(m, name, 1e-3 * value)
        yield
    finally:
        for m, name, value in found:
            setattr(m, name, value)
