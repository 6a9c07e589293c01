"""Checks of the forward pass, where it was measured: attention, activations, dead units, experts. They state facts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.diagnose.evidence import LATE, POINTS, Evidence
from equipoise.monitor.forward.quantities import DEAD, ENTROPY, FORWARD, LOAD, LOGIT, OUTPUT_RMS
from equipoise.monitor.store.layout import Column

LARGE, RISES = 50.0, 2.0
"""An attention logit this large, and this many times that of the first quarter of the run. Those of healthy runs of
the chosen half end at 10 or less, of the other half at 21 or less; planted faults at 74 or more."""

GROWS = 4.0
"""RMS of a block's output in the last quarter over that in the second one. Healthy runs have 2.7 or
less, planted faults 7 or more."""

MANY = 0.25
"""Share of a layer's units that give nothing, as in `checks_gradients.DEAD`."""

STARVED = 0.1
"""An expert with less than this part of an equal share of the tokens."""

ENOUGH, EACH = 8, 2
"""Passes that must have been measured, and how many in each part of the run that is compared."""

Array = NDArray[np.float64]
Parts = dict[str, NDArray[np.bool_]]


class Passes:
    """The measured forward passes of a run.

    Args:
        e: the evidence of the run.
    """

    def __init__(self, e: Evidence) -> None:
        self._run = e.run
        self._columns = [c for c in e.run.columns if c.quantity in (DEAD, ENTROPY, LOAD, LOGIT, OUTPUT_RMS)]

    def read(self, quantity: str, heads: bool = False) -> tuple[list[Column], NDArray[np.int64], Array]:
        """A quantity of all modules: its columns, the steps, and a column of numbers for each.

        Args:
            quantity: its name.
            heads: of heads or experts instead.
        """
        columns = [c for c in self._columns if c.quantity == quantity and (c.neuron is not None) is heads]
        if not columns:
            return [], np.empty(0, np.int64), np.empty((0, 0))
        table = self._run.table(columns, kind=FORWARD, points=POINTS)
        return columns, table.steps, np.where(table.count > 0, table.values, np.nan).astype(np.float64)


def _parts(steps: NDArray[np.int64]) -> Parts | None:
    """The first, second and last quarter of the run; None where too little was measured."""
    if len(steps) < ENOUGH:
        return None
    share = steps / steps[-1]
    found = {"first": share <= 0.25, "second": (share > 0.25) & (share <= 0.5), "last": share > LATE}
    return found if all(part.sum() >= EACH for part in found.values()) else None


def _middle(values: Array, where: NDArray[np.bool_]) -> Array:
    """The median of each column over some rows; NaN where nothing was measured."""
    out = np.full(values.shape[1], np.nan)
    for i, column in enumerate(values[where].T):
        there = column[~np.isnan(column)]
        if len(there):
            out[i] = np.median(there)
    return out


def check_attention(e: Evidence) -> Iterator[Finding]:
    """The largest attention logits are large and rising: attention goes to single keys."""
    passes = Passes(e)
    columns, steps, values = passes.read(LOGIT)
    parts = _parts(steps)
    if parts is None:
        return
    first, last = (_middle(values, parts[name]) for name in ("first", "last"))
    off = [i for i in range(len(columns)) if last[i] >= LARGE and last[i] >= RISES * first[i]]
    if not off:
        return
    worst = max(off, key=lambda i: last[i])
    place = str(columns[worst].tensor)
    heads, _, of_heads = passes.read(LOGIT, heads=True)
    mine = [i for i, c in enumerate(heads) if c.tensor == place]
    ends = _middle(of_heads, parts["last"])[mine] if mine else np.empty(0)
    many = f" in {int((ends >= LARGE).sum())} of {len(mine)} heads" if len(mine) > 1 else ""
    entropies, _, entropy = passes.read(ENTROPY)
    even = [i for i, c in enumerate(entropies) if c.tensor == place]
    said = f"; the entropy of its weights is {_middle(entropy, parts['last'])[even[0]]:.2g} of that of equal ones"
    yield Finding(
        "attention-logits-growing",
        "info",
        place,
        f"its largest attention logit rose from {first[worst]:.3g} in the first quarter of the run to "
        f"{last[worst]:.3g} in the last{many}{said if even else ''}{_others(len(off) - 1)}",
        f"below {LARGE:g}, or no longer rising",
        "softmax of such logits looks at single keys, and hardly passes gradients to queries and keys; normalised "
        "queries and keys (QK norm) bound the logits",
        "measured forward pass",
    )


def check_activations(e: Evidence) -> Iterator[Finding]:
    """The outputs of blocks go on growing."""
    columns, steps, values = Passes(e).read(OUTPUT_RMS)
    parts = _parts(steps)
    if parts is None:
        return
    before, last = (_middle(values, parts[name]) for name in ("second", "last"))
    with np.errstate(all="ignore"):
        ratio = last / before
    off = [i for i in range(len(columns)) if before[i] > 0 and ratio[i] >= GROWS]
    if off:  # what grows reaches all blocks behind: the first of them has the cause
        yield Finding(
            "activations-growing",
            "info",
            str(columns[off[0]].tensor),
            f"the RMS of its output rose from {before[off[0]]:.3g} in the second quarter of the run to "
            f"{last[off[0]]:.3g} in the last{_others(len(off) - 1)}",
            f"less than {GROWS:g}× as much in the last quarter as in the second",
            "it is the first of the blocks that grow so; low precision loses what small updates add to large "
            "activations, and they may overflow",
            "measured forward pass",
        )


def check_units(e: Evidence) -> Iterator[Finding]:
    """Many units of a layer give nothing for any sample."""
    columns, steps, values = Passes(e).read(DEAD)
    if len(steps) < ENOUGH:
        return
    share = _middle(values, steps > LATE * steps[-1])
    off = [i for i in range(len(columns)) if share[i] >= MANY]
    if off:
        worst = max(off, key=lambda i: share[i])
        yield Finding(
            "units-dead",
            "info",
            str(columns[worst].tensor),
            f"{share[worst]:.0%} of the units behind it give less than 1/1000 of the layer's RMS for every sample of "
            f"a batch{_others(len(off) - 1)}",
            f"less than {MANY:.0%}",
            "they add nothing to the output; while they stay so, their weights get hardly any gradient",
            "measured forward pass",
        )


def check_experts(e: Evidence) -> Iterator[Finding]:
    """Some experts get hardly any tokens."""
    columns, steps, values = Passes(e).read(LOAD, heads=True)
    if len(steps) < ENOUGH:
        return
    late = steps > LATE * steps[-1]
    found: dict[str, list[float]] = {}
    for column, values_of in zip(columns, values.T, strict=True):
        there = values_of[late & ~np.isnan(values_of)]
        if len(there):
            found.setdefault(str(column.tensor), []).append(float(there.mean()))
    starved = {place: sum(load < STARVED for load in loads) for place, loads in found.items()}
    starved = {place: count for place, count in starved.items() if count}
    if starved:
        worst = max(starved, key=lambda place: starved[place])
        loads = found[worst]
        verb = "gets" if starved[worst] == 1 else "get"
        yield Finding(
            "experts-unbalanced",
            "info",
            worst,
            f"{starved[worst]} of its {len(loads)} experts {verb} less than {STARVED:.0%} of an equal share of the "
            f"tokens; the busiest gets {max(loads):.2g}×{_others(len(starved) - 1)}",
            f"at least {STARVED:.0%} for each",
            "experts without tokens learn nothing; a balancing loss, or a bias for each expert, spreads tokens",
            "measured forward pass",
        )


def _others(count: int) -> str:
    return f"; {count} other module{'s' if count > 1 else ''} too" if count else ""


CHECKS = (check_attention, check_activations, check_units, check_experts)
