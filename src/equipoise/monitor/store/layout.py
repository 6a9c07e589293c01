"""The structure of a run: tensors, quantities, and layouts, which say what each number of a row means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise import _check

PER = ("tensor", "neuron", "global")
DTYPES = ("float32", "float64")

SCHEDULE = "schedule"
"""The kind of rows that lr and weight decay have, at the ends of straight lines."""

LOG = "log"
"""The kind of rows that the loop's own numbers have, such as the loss."""


@dataclass(frozen=True)
class Quantity:
    """Something that is measured.

    Attributes:
        name: such as "rotation".
        unit: such as "radian", or empty.
        per: measured once per "tensor" or "neuron", or once in all ("global").
        description: one sentence.
    """

    name: str
    unit: str = ""
    per: str = "tensor"
    description: str = ""

    def __post_init__(self) -> None:
        _check.choice(f"per of quantity {self.name!r}", self.per, PER)


@dataclass(frozen=True)
class TensorInfo:
    """A watched tensor.

    Attributes:
        name: as in `model.named_parameters()`.
        shape: its shape.
        role: what it is in the network, such as "matrix", "gain" or "bias".
        group: index of its parameter group.
        neurons: indices of the sampled neurons.
        info: anything else that JSON can hold.
    """

    name: str
    shape: tuple[int, ...] = ()
    role: str = ""
    group: int = 0
    neurons: tuple[int, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "neurons", tuple(int(n) for n in self.neurons))


class Column(NamedTuple):
    """One number of a row: a quantity, of the whole run or of a tensor, one of its neurons, or a quantile of them.

    Attributes:
        quantity: the quantity's name.
        tensor: the tensor's name; None for a global quantity.
        quantile: between 0 and 1, over the neurons of the tensor.
        neuron: index of a sampled neuron.
    """

    quantity: str
    tensor: str | None = None
    quantile: float | None = None
    neuron: int | None = None

    def __str__(self) -> str:
        of = [] if self.tensor is None else [self.tensor]
        of += [] if self.quantile is None else [f"quantile {self.quantile:g}"]
        of += [] if self.neuron is None else [f"neuron {self.neuron}"]
        return f"{self.quantity}({', '.join(of)})" if of else self.quantity


@dataclass(frozen=True)
class Layout:
    """What the numbers of a row mean.

    Attributes:
        columns: one for each number of the row.
        kind: "main", or another name for rows that are measured at other steps, such as "slow".
        dtype: "float32" or "float64", of the whole row.
    """

    columns: tuple[Column, ...]
    kind: str = "main"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        _check.choice("dtype", self.dtype, DTYPES)
        if not self.columns:
            raise ValueError(f"columns of layout {self.kind!r} = (): must be at least one Column")
        if len(self.places) < len(self.columns):
            twice = next(c for i, c in enumerate(self.columns) if c in self.columns[:i])
            raise ValueError(f"columns of layout {self.kind!r} hold {twice} twice: must differ")

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def places(self) -> dict[Column, int]:
        """Where each column is in a row."""
        return {column: i for i, column in enumerate(self.columns)}

    @cached_property
    def stored(self) -> np.dtype[Any]:
        """The dtype as stored: little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    def pack(self, row: ArrayLike) -> bytes:
        """A row as it is stored."""
        values = np.asarray(row)
        if values.shape != (len(self),):
            raise ValueError(f"row has shape {values.shape}: must be ({len(self)},), by layout {self.kind!r}")
        return self.pack_rows(values[None])[0]

    def pack_rows(self, rows: NDArray[Any]) -> list[bytes]:
        """Rows as they are stored."""
        if rows.shape[1:] != (len(self),):
            raise ValueError(f"row has shape {rows.shape[1:]}: must be ({len(self)},), by layout {self.kind!r}")
        with np.errstate(over="ignore"):
            return [row.tobytes() for row in rows.astype(self.stored)]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        columns = [[c.quantity, c.tensor, c.quantile, c.neuron] for c in self.columns]
        return {"kind": self.kind, "dtype": self.dtype, "columns": columns}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Layout:
        """The inverse of `to_dict`."""
        made = Layout(tuple(Column(*c) for c in data["columns"]), data["kind"], data["dtype"])
        for c in made.columns:
            numbers = isinstance(c.quantile, float | int | None) and isinstance(c.neuron, int | None)
            if not (numbers and isinstance(c.quantity, str) and isinstance(c.tensor, str | None)):
                raise ValueError(f"columns hold {c!r}: must be of words and numbers")
        if not isinstance(made.kind, str):
            raise ValueError(f"kind = {made.kind!r}: must be a word")
        return made


def make_layout(
    quantities: Sequence[Quantity],
    tensors: Sequence[TensorInfo],
    *,
    quantiles: Sequence[float] = (),
    kind: str = "main",
    dtype: str = "float32",
) -> Layout:
    """A layout with every quantity of every tensor: one number, or quantiles over neurons and the sampled neurons.

    Args:
        quantities: global ones give one column, those per tensor one for each tensor, those per neuron one for each
            tensor and quantile, and one for each tensor and sampled neuron.
        tensors: the tensors.
        quantiles: between 0 and 1.
        kind: name of the layout.
        dtype: "float32" or "float64".

    >>> layout = make_layout([Quantity("loss", per="global"), Quantity("norm")], [TensorInfo("w", (4, 3))])
    >>> [str(c) for c in layout.columns]
    ['loss', 'norm(w)']
    """
    shares = [_check.number("quantiles", q, low=0, high=1) for q in quantiles]
    columns = [Column(q.name) for q in quantities if q.per == "global"]
    for tensor in tensors:
        for q in quantities:
            if q.per == "tensor":
                columns.append(Column(q.name, tensor.name))
            elif q.per == "neuron":
                columns += [Column(q.name, tensor.name, quantile=share) for share in shares]
                columns += [Column(q.name, tensor.name, neuron=n) for n in tensor.neurons]
    return Layout(tuple(columns), kind, dtype)


def to_json(thing: Quantity | TensorInfo) -> dict[str, Any]:
    """As plain data for JSON, without the name, which is the record's key."""
    return {key: value for key, value in vars(thing).items() if key != "name"}
