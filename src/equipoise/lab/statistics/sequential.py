r"""A test that may be looked at several times: intervals whose errors add up to a stated rate.

Seeds come in rounds. After each round the mean over seeds has an interval, and a claim is decided as soon as the
interval lies on one side. Looking again and again inflates the errors of a 95 % interval: so there are at most five
looks, at 3, 5, 8, 12 and 20 seeds, and each has a fifth of the 5 %. A look's interval is Student's,

    mean ± t_{n−1}(1 − 0.05/5)·s/√n,

and by the union bound the true mean is outside of any of the five with a probability of 5 % at most, whenever one
stops. A claim is decided wrongly only where it is.

This is for one value a seed, independent and near to normal. Trials of the same seed are paired: their difference is
one value. `tests/lab/statistics` simulates what is stated here, with other noise, too.

Reference: Jennison & Turnbull 1989, repeated confidence intervals.
"""

from __future__ import annotations

import math

from equipoise.lab.statistics.student import quantile

ERROR = 0.05
"""How often a claim may be decided wrongly, over all looks."""

LOOKS = (3, 5, 8, 12, 20)
"""Seeds at which it is looked at; each look may err with `ERROR / len(LOOKS)`."""

RELATIONS = ("about", "above", "below")


def margin(std: float, count: int) -> float:
    """Half the width of a look's interval; infinite for a single seed.

    >>> [round(margin(1.0, n), 2) for n in LOOKS]
    [5.73, 2.06, 1.24, 0.9, 0.64]
    """
    if count < 2:
        return math.inf
    return quantile(1 - ERROR / len(LOOKS), count - 1) * std / math.sqrt(count)


def next_look(count: int) -> int | None:
    """The seeds of the next look; None after the last.

    >>> next_look(1), next_look(3), next_look(6), next_look(20)
    (3, 5, 8, None)
    """
    return next((look for look in LOOKS if look > count), None)


def decide(low: float, high: float, *, relation: str, expected: float, room: float = 0.0) -> str:
    """What an interval says about a claim: "agrees", "differs" or "undecided".

    Args:
        low: of the interval.
        high: of the interval.
        relation: the mean is "about" the expected number, "above" or "below" it.
        expected: the number.
        room: how far from it is still about it.

    >>> [decide(*ends, relation="above", expected=0.0) for ends in ((0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3))]
    ['agrees', 'differs', 'undecided']
    >>> [decide(*ends, relation="about", expected=1.0, room=0.1) for ends in ((0.95, 1.1), (1.2, 1.3), (1.0, 1.2))]
    ['agrees', 'differs', 'undecided']
    """
    if relation == "about":
        first, last = expected - room, expected + room
        rounding = 1e-12 * max(abs(first), abs(last))  # of the interval's own ends
        if first - rounding <= low and high <= last + rounding:
            return "agrees"
        return "differs" if high < first or low > last else "undecided"
    if low == high == expected:
        return "undecided"  # exactly as expected, neither above nor below
    above = "agrees" if low >= expected else "differs" if high < expected else "undecided"
    below = "agrees" if high <= expected else "differs" if low > expected else "undecided"
    return above if relation == "above" else below
