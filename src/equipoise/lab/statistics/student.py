"""Student's t distribution for whole degrees of freedom, because numpy has none and scipy is not a dependency."""

from __future__ import annotations

import functools
import math

from equipoise import _check


def within(t: float, freedom: int) -> float:
    """P(|T| ≤ t), by the finite series in θ = atan(t/√ν).

    ν odd:  2/π·(θ + sin θ·(cos θ + 2/3·cos³θ + … + (2·4⋯(ν−3))/(3·5⋯(ν−2))·cos^{ν−2}θ))
    ν even: sin θ·(1 + 1/2·cos²θ + … + (1·3⋯(ν−3))/(2·4⋯(ν−2))·cos^{ν−2}θ)

    Reference: [abramowitz1964] 26.7.3 and 26.7.4.

    >>> round(within(12.706, 1), 4), round(within(2.228, 10), 4)
    (0.95, 0.95)
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@functools.cache
def quantile(share: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = share, by bisection.

    Args:
        share: in (0, 1).
        freedom: degrees, 1 or more.

    >>> [round(quantile(0.95, n), 3) for n in (1, 2, 10)]
    [12.706, 4.303, 2.228]
    """
    _check.number("share", share, low=0, high=1, open_low=True, open_high=True)
    _check.whole("freedom", freedom, low=1)
    low, high = 0.0, 1.0
    while within(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < share else (low, middle)
    return (low + high) / 2
