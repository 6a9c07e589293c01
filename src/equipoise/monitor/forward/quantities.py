"""What is measured of the forward pass, and the kind of rows that it has. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.monitor.store.layout import Column, Quantity

FORWARD = "forward"
"""The kind of rows that the forward pass has."""

META = "forward"
"""Where a run says what could not be seen."""

OUTPUT_RMS, OUTPUT_MAX, WRITTEN = "output_rms", "output_max", "written_rms"
DEAD, SATURATED = "units_dead", "units_saturated"
LOGIT, ENTROPY = "attention_logit", "attention_entropy"
LOAD = "expert_load"

QUANTITIES = (
    Quantity(OUTPUT_RMS, "", "tensor", "RMS of a block's output: of the residual stream behind it, if it has one"),
    Quantity(OUTPUT_MAX, "", "tensor", "largest absolute value of a block's output"),
    Quantity(WRITTEN, "", "tensor", "RMS of a block's output minus its input: what it writes to the residual stream"),
    Quantity(DEAD, "", "tensor", "share of units whose output is below 1/1000 of the layer's RMS in the whole batch"),
    Quantity(SATURATED, "", "tensor", "share of units at the ends of tanh or sigmoid in the whole batch"),
    Quantity(LOGIT, "", "neuron", "largest attention logit, of each head; of the module, over its heads"),
    Quantity(ENTROPY, "", "neuron", "entropy of attention over that of equal weights, of each head; mean over heads"),
    Quantity(LOAD, "", "neuron", "tokens of each expert over an equal share; of the module, the largest"),
)
"""Those per neuron have one number for each head or expert, and one for the module."""

LABELS = {
    OUTPUT_RMS: "RMS of the output",
    OUTPUT_MAX: "largest output",
    WRITTEN: "RMS of what the block adds",
    LOGIT: "largest attention logit",
    ENTROPY: "entropy of attention",
    DEAD: "dead units",
    SATURATED: "saturated units",
    LOAD: "busiest expert",
}
"""What pages and the terminal call them."""

LEAST = (ENTROPY,)
"""Quantities whose smallest value is the one to look at; of the others it is the largest."""


def extremes(numbers: Iterable[tuple[Column, float]]) -> dict[str, tuple[float, str]]:
    """The value of each quantity to look at, and its module; heads and experts are in their module's number.

    >>> numbers = [(Column("output_max", "a"), 2.0), (Column("output_max", "b"), 3.0), (Column("units_dead", "a"), 0.1)]
    >>> extremes(numbers)
    {'output_max': (3.0, 'b'), 'units_dead': (0.1, 'a')}
    """
    out: dict[str, tuple[float, str]] = {}
    for column, value in numbers:
        if column.tensor is None or column.neuron is not None or value != value:
            continue
        found = out.get(column.quantity)
        if found is None or (value < found[0] if column.quantity in LEAST else value > found[0]):
            out[column.quantity] = float(value), column.tensor
    return {name: out[name] for name in LABELS if name in out}
