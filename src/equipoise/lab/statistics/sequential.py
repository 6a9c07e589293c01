r"""A sequential test: intervals that may be looked at several times with a bounded total error rate.

Seeds come in rounds. After each round the mean over seeds has an interval, and a claim is decided as soon as the
interval lies on one side. Looking again and again inflates the errors of a 95 % interval. So there are at most five
looks, at 3, 5, 8, 12 and 20 seeds, and each has a small error rate of its own, α of `LEVELS`. A look's interval is
Student's,

    mean ± t_{n−1}(1 − α)·s/√n,

and by the union bound the true mean is outside of any of the five with a probability of 0.59 % at most, whenever one
stops, where noise is normal. A claim is decided wrongly only where it is.

The stated rate is 5 %, and the rest is for noise that is not normal: three or five seeds do not tell what noise is
like. The levels are such that exponential noise, with a skewness of two, is within it. Later looks have lower levels,
as there the same width costs fewer seeds. Of 40 000 simulated experiments at the very boundary, stopped at the first
decision, these were decided wrongly: 0.3 % with normal noise, 0.2 % with Student's of 3 degrees, 0.7 % with uniform
noise, 1.1 % with gamma of a skewness of one, 1.9 % with lognormal of σ = 0.5, 2.6 % with two modes, 4.8 % with
exponential noise. Beyond that the rate does not hold: 9.7 % with lognormal of σ = 1, which has a skewness of six.
Ratios are as skewed where they vary much, so claims about them are of their logarithms.

This is for one independent value a seed. Trials of the same seed are paired, and their difference is one value; where
both have the same noise it is not skewed at all. `tests/lab/statistics` simulates what is stated here.

Reference: [jennison1989].
"""

from __future__ import annotations

import math

from equipoise.lab.statistics.student import quantile

ERROR = 0.05
"""How often a claim may be decided wrongly, over all looks."""

LEVELS = {3: 0.0025, 5: 0.0015, 8: 0.0008, 12: 0.0006, 20: 0.0005}
"""Seeds at which it is looked at, and how often a look's interval misses the mean of normal noise."""

LOOKS = tuple(LEVELS)

NOMINAL = sum(LEVELS.values())
"""How often any of the five intervals misses the mean of normal noise, at most."""

RELATIONS = ("about", "above", "below")


def margin(std: float, count: int) -> float:
    """Half the width of a look's interval; infinite for a single seed.

    Where a seed is missing, as of a trial that diverged, the level is that of the look before.

    >>> [round(margin(1.0, n), 2) for n in LOOKS]
    [11.53, 3.46, 1.99, 1.37, 0.94]
    """
    if count < 2:
        return math.inf
    level = LEVELS[max((look for look in LOOKS if look <= count), default=LOOKS[0])]
    return quantile(1 - level, count - 1) * std / math.sqrt(count)


def next_look(count: int) -> int | None:
    """The seeds of the next look; None after the last.

    >>> next_look(1), next_look(3), next_look(6), next_look(20)
    (3, 5, 8, None)
    """
    return next((look for look in LOOKS if look > count), None)


def decide(low: float, high: float, *, relation: str, expected: float, room: float = 0.0, least: float = 0.0) -> str:
    """What an interval says about a claim: "agrees", "differs" or "undecided".

    Args:
        low: of the interval.
        high: of the interval.
        relation: the mean is "about" the expected number, "above" or "below" it.
        expected: the number.
        room: how far from it is still about it.
        least: the smallest distance above or below that matters. An interval that leaves no room for it differs,
            whether or not it leaves out the expected number itself: the effect is too small to notice.

    >>> [decide(*ends, relation="above", expected=0.0) for ends in ((0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3))]
    ['agrees', 'differs', 'undecided']
    >>> [decide(*ends, relation="about", expected=1.0, room=0.1) for ends in ((0.95, 1.1), (1.2, 1.3), (1.0, 1.2))]
    ['agrees', 'differs', 'undecided']
    >>> [decide(-0.1, 0.1, relation="above", expected=0.0, least=least) for least in (0.0, 0.05, 0.2)]
    ['undecided', 'undecided', 'differs']
    >>> decide(0.01, 0.02, relation="above", expected=0.0, least=0.05)
    'differs'
    """
    if relation == "about":
        first, last = expected - room, expected + room
        rounding = 1e-12 * max(abs(first), abs(last))  # of the interval's own ends
        if first - rounding <= low and high <= last + rounding:
            return "agrees"
        return "differs" if high < first or low > last else "undecided"
    if low == high == expected and not least:
        return "undecided"  # exactly as expected, neither above nor below
    above = "differs" if high < expected + least else "agrees" if low >= expected else "undecided"
    below = "differs" if low > expected - least else "agrees" if high <= expected else "undecided"
    return above if relation == "above" else below
