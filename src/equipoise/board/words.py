"""Numbers, times and findings as text for pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.finding import SEVERITIES, Finding


def number(x: float, digits: int = 3) -> str:
    """A number as people write it.

    >>> [number(x) for x in (0, 0.00031, 0.25, 12.345, 43210, 1.5e9, float("inf"))]
    ['0', '3.1e-4', '0.25', '12.3', '43,210', '1.5e9', '∞']
    """
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0 or 1e-3 <= abs(x) < 1e6:
        return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.{digits}g}"
    mantissa, _, power = f"{x:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}"


def duration(seconds: float) -> str:
    """A stretch of time, in the two largest units.

    >>> [duration(s) for s in (0.4, 12, 125, 3725, 90000)]
    ['0.4 s', '12 s', '2 min 5 s', '1 h 2 min', '25 h 0 min']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(n: int, what: str) -> str:
    """A number and its noun.

    >>> count(1, "warning"), count(1200, "step")
    ('1 warning', '1,200 steps')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def tally(findings: Sequence[Finding]) -> str:
    """How many findings of each severity there are.

    >>> tally([Finding("decay-none", "info", "", "", "", "", "")])
    'Found: 1 info.'
    """
    found = ((s, sum(f.severity == s for f in findings)) for s in SEVERITIES)
    parts = [f"{n} info" if s == "info" else count(n, s) for s, n in found if n]
    return f"Found: {', '.join(parts)}."


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Each finding once, the worst first."""
    known = {(f.code, f.where, f.evidence): f for f in findings}
    order = {s: i for i, s in enumerate(SEVERITIES)}
    return sorted(known.values(), key=lambda f: order.get(f.severity, len(order)))
