r"""A sequential test: intervals that may be looked at several times with a bounded total error rate.

Seeds come in rounds. After each round the mean over seeds has an interval, and a claim is decided as soon as the
interval lies on one side. Looking again and again inflates the errors of a 95 % interval. So there are at most five
looks, at 3, 5, 8, 12 and 20 seeds, and each has a fifth of 2 %. A look's interval is Student's,

    mean ± t_{n−1}(1 − 0.02/5)·s/√n,

and by the union bound the true mean is outside of any of the five with a probability of 2 % at most, whenever one
stops, where noise is normal. A claim is decided wrongly only where it is.

The stated rate is 5 %: few seeds do not tell what noise is like, and the rest is for noise that is not normal. Of
40 000 simulated experiments at the very boundary, stopped at the first decision, these were decided wrongly: 0.8 % with
normal noise, 0.6 % with Student's of 3 degrees, 1.6 % with uniform noise, 3.0 % with gamma of a skewness of one, 4.2 %
with two modes, 4.8 % with lognormal of σ = 0.5. Beyond that the rate does not hold: 8.8 % with exponential noise, which
has a skewness of two.

This is for one independent value a seed. Trials of the same seed are paired, and their difference is one value; where
both have the same noise it is not skewed at all. `tests/lab/statistics` simulates what is stated here.

Reference: [jennison1989].
"""

from __future__ import annotations

import math

from equipoise.lab.statistics.student import quantile

ERROR = 0.05
"""How often a claim may be decided wrongly, over all looks."""

NOMINAL = 0.02
"""The same where noise is normal."""

LOOKS = (3, 5, 8, 12, 20)
"""Seeds at which it is looked at; each look has an equal part of `NOMINAL`."""

RELATIONS = ("about", "above", "below")


def margin(std: float, count: int) -> float:
    """Half the width of a look's interval; infinite for a single seed.

    >>> [round(margin(1.0, n), 2) for n in LOOKS]
    [9.1, 2.66, 1.49, 1.05, 0.73]
    """
    if count < 2:
        return math.inf
    return quantile(1 - NOMINAL / len(LOOKS), count - 1) * std / math.sqrt(count)


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
