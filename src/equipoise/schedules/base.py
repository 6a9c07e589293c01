"""`Schedule`: a pure function of the step, counted from 1, that can be inspected without stepping.

A curve is a frozen dataclass with one formula, `_at`. It takes the step 0 too, which no run ever asks for: the value
there is where the curve starts from, and what a warmup in front of it climbs to.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise import _check
from equipoise._check import Array
from equipoise._extras import importing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Schedule(ABC):
    """A curve step → value ≥ 0. Steps count from 1; after its end a curve holds its last value.

    Call it with a step, or with an array of steps; ask for a whole run with `values`. Schedules compare and hash by
    what they are, `eval(repr(s), vars(equipoise.schedules)) == s`, and `to_dict` gives plain data for JSON.

    >>> from equipoise.schedules import cosine
    >>> s = 0.01 * cosine(4)
    >>> s(4), s.values(4).round(6).tolist()
    (0.0, [0.008536, 0.005, 0.001464, 0.0])
    >>> s
    scale(cosine(steps=4), factor=0.01)
    """

    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    """Every curve by the name of the function that makes it."""

    name: ClassVar[str]
    """The name of the function that makes it."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):  # a base of several curves has none
            Schedule.kinds[cls.name] = cls

    @abstractmethod
    def _at(self, t: Array) -> Array:
        """The values at a one-dimensional array of whole steps ≥ 0."""

    @property
    def end(self) -> int | None:
        """The step that the curve is made to end at, or None for a curve without an end."""
        return self._end()

    def _end(self) -> int | None:
        return None

    def _still_from(self) -> int | None:
        """The step from which the curve no longer changes, where there is one; a curve without an end may have it."""
        return self._end()

    @property
    def _rises_until(self) -> int | None:
        """A step after which the curve never rises, where one is known."""
        return self._still_from()

    @property
    def top(self) -> float:
        """The largest value of the curve over all steps.

        >>> from equipoise.schedules import inverse_sqrt, warmup
        >>> warmup(inverse_sqrt(100, peak=0.01), 100).top
        0.01
        """
        if self._rises_until is None:
            raise ValueError(
                f"{self} has no known largest value: it may rise for ever; give the largest value yourself"
            )
        return float(self._at(np.arange(1.0, max(1, self._rises_until) + 1)).max())

    @overload
    def __call__(self, t: float) -> float: ...
    @overload
    def __call__(self, t: Sequence[float] | NDArray[Any]) -> Array: ...
    def __call__(self, t: ArrayLike) -> float | Array:
        """The value at step t ≥ 1: a float for a number, an array for an array."""
        try:
            steps = np.asarray(t, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"t = {t!r}: must be a whole number ≥ 1, or an array of them") from None
        bad = ~((steps >= 1) & (steps == np.floor(steps)) & np.isfinite(steps))
        if bad.any():
            raise ValueError(f"t = {float(steps[bad].flat[0])!r}: must be a whole number ≥ 1 (the first step is t = 1)")
        # Through a contiguous array always, so that a step alone and in a row gets the same machine code and bits.
        values = self._at(steps.ravel())
        return float(values[0]) if steps.ndim == 0 else values.reshape(steps.shape)

    def values(self, steps: int | None = None) -> Array:
        """The whole curve: entry i belongs to step i + 1. `steps` may be left out where the curve has an end.

        >>> from equipoise.schedules import linear
        >>> linear(4, peak=0.4).values().round(9).tolist()
        [0.3, 0.2, 0.1, 0.0]
        """
        return self._at(np.arange(1.0, self._length(steps) + 1))

    def _length(self, steps: int | None) -> int:
        if steps is None:
            steps = self.end
        if steps is None:
            raise ValueError(f"steps = None: must be a whole number ≥ 1, because {self} has no end")
        return _check.whole("steps", steps, low=1)

    def plot(self, steps: int | None = None, *, ax: Axes | None = None, **line: Any) -> Axes:
        """Draw the curve over the steps of a run and return the matplotlib Axes.

        Args:
            steps: how many steps; may be left out where the curve has an end.
            ax: where to draw. Default: a new figure.
            **line: passed on to `Axes.plot`, as `label` or `color`.
        """
        T = self._length(steps)
        with importing("plot", "matplotlib"):
            from matplotlib import pyplot
        if ax is None:
            ax = pyplot.subplots(figsize=(6, 3), layout="constrained")[1]
            ax.set(xlabel="step", ylabel="value", xlim=(1, max(T, 2)))
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.3)
        ax.plot(np.arange(1, T + 1), self.values(T), **line)
        if "label" in line:
            ax.legend(frameon=False)
        return ax

    def __mul__(self, other: float | Schedule) -> Schedule:
        from equipoise.schedules import compose

        if isinstance(other, Schedule):
            return compose.product(self, other)
        return compose.scale(self, other) if _is_number(other) else NotImplemented

    def __rmul__(self, other: float) -> Schedule:
        return self * other

    def __truediv__(self, other: float) -> Schedule:
        if not _is_number(other):
            return NotImplemented
        return self * (1 / _check.number("divisor", other, low=0, open_low=True))

    def __add__(self, other: float | Schedule) -> Schedule:
        from equipoise.schedules import compose, curves

        if isinstance(other, Schedule):
            return compose.add(self, other)
        return compose.add(self, curves.constant(other)) if _is_number(other) else NotImplemented

    def __radd__(self, other: float) -> Schedule:
        return self + other

    def __repr__(self) -> str:
        return self._render(short=False)

    def __str__(self) -> str:
        """As `repr`, with long arrays cut short to their ends and a fingerprint."""
        return self._render(short=True)

    def _render(self, *, short: bool) -> str:
        shown = [(f.name, getattr(self, f.name)) for f in fields(self) if not _is_default(f, getattr(self, f.name))]
        first = 1 if shown and isinstance(shown[0][1], Schedule) else 0
        parts = [s._render(short=short) for _, s in shown[:first]]
        for key, value in shown[first:]:
            text = value._render(short=short) if isinstance(value, Schedule) else repr(value)
            parts.append(f"{key}={text}")
        return f"{self.name}({', '.join(parts)})"

    def fingerprint(self) -> str:
        """Sixteen hex digits that tell this curve from any other, the same on every machine.

        >>> from equipoise.schedules import linear
        >>> linear(10).fingerprint() == linear(10, peak=1).fingerprint(), len(linear(10).fingerprint())
        (True, 16)
        """
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The curve as plain data; `Schedule.from_dict` reads it back.

        >>> from equipoise.schedules import cosine
        >>> (2 * cosine(10)).to_dict()
        {'name': 'scale', 'schedule': {'name': 'cosine', 'steps': 10, 'peak': 1.0, 'final': 0.0}, 'factor': 2.0}
        """
        return {"name": self.name} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Schedule:
        """The curve that `to_dict` described.

        >>> from equipoise.schedules import cosine, warmup
        >>> s = warmup(cosine(10), 5)
        >>> Schedule.from_dict(s.to_dict()) == s
        True
        """
        if not isinstance(data, Mapping) or data.get("name") not in Schedule.kinds:
            raise ValueError(f"data = {data!r}: must be a mapping with name one of {', '.join(sorted(Schedule.kinds))}")
        kind = Schedule.kinds[data["name"]]
        arguments = {key: _rebuilt(value) for key, value in data.items() if key != "name"}
        known = {f.name for f in fields(kind)}
        if odd := sorted(set(arguments) - known):
            raise ValueError(f"data has {', '.join(odd)}: {data['name']} takes only {', '.join(sorted(known))}")
        return kind(**arguments)

    def _set(self, **checked: Any) -> None:
        """Store arguments after their check, in the one place where a frozen curve may."""
        for key, value in checked.items():
            object.__setattr__(self, key, value)


def as_schedule(name: str, value: Any) -> Schedule:
    """A schedule as it is, a number as a constant, an array as a table."""
    from equipoise.schedules import curves, table

    if isinstance(value, Schedule):
        return value
    if np.ndim(value) == 1:
        return table.Table(_check.series(name, value, low=0))
    return curves.Constant(_check.number(name, value, low=0))


def joint_end(schedules: Sequence[Schedule], *, ended: bool = False) -> int | None:
    """The end of curves that run side by side: where all are still, if any of them has an end (or `ended`)."""
    still = [s._still_from() for s in schedules]
    known = [step for step in still if step is not None]
    has_end = ended or any(s.end is not None for s in schedules)
    return max(known) if has_end and len(known) == len(still) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_default(field: Any, value: object) -> bool:
    return field.default is not MISSING and type(value) is type(field.default) and value == field.default


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _rebuilt(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Schedule.from_dict(value)
    return tuple(_rebuilt(v) for v in value) if isinstance(value, list | tuple) else value
