"""Manipulation checks: what must be true for a claim to be tested at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class Check:
    """One thing that a claim needs, with what was measured of it.

    Attributes:
        name: what is checked, as "rotation as asked".
        needs: what must hold, in words.
        measured: the number, or words; None where it was not recorded, which does not pass.
        passed: whether it holds.

    >>> check = Check.between("rotation as asked", 0.15, 0.9, 1.1)
    >>> check.passed, check.reason
    (False, 'rotation as asked: 0.15, needs 0.9 to 1.1')
    """

    name: str
    needs: str
    measured: float | str | None
    passed: bool

    @staticmethod
    def between(name: str, measured: float | None, low: float = -math.inf, high: float = math.inf) -> Check:
        """Check that a number lies in a range; an open end is not mentioned."""
        ends = [f"{low:.4g}" if low > -math.inf else "", f"{high:.4g}" if high < math.inf else ""]
        needs = " to ".join(ends) if all(ends) else f"at least {ends[0]}" if ends[0] else f"at most {ends[1]}"
        known = measured is not None and math.isfinite(measured)
        return Check(name, needs, measured if known else None, known and low <= (measured or 0.0) <= high)

    @property
    def reason(self) -> str:
        """Why it does not pass, or what was found, in words."""
        found = "not recorded" if self.measured is None else self.measured
        return f"{self.name}: {f'{found:.4g}' if isinstance(found, float) else found}, needs {self.needs}"

    @staticmethod
    def read(fields: Any) -> Check:
        """A check from what `dataclasses.asdict` gave."""
        made = Check(**fields)
        texts = isinstance(made.name, str) and isinstance(made.needs, str) and isinstance(made.passed, bool)
        if not texts or not isinstance(made.measured, float | int | str | None):
            raise ValueError(f"check = {fields!r}: must have a name, what it needs, what was measured, and passed")
        return made
