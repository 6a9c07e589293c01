"""Argument checks that name the argument, its value and what is allowed. Each raises ValueError."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LONG = 80
"""Letters of a value that a message quotes as it is; of others it has the type."""


def shown(value: Any) -> str:
    """A value as a message quotes it: itself, or its type where it would fill lines, as optimizers and tensors do.

    >>> shown("adamx"), shown(np.zeros(100)), len(shown(10**400))
    ("'adamx'", 'ndarray', 80)
    """
    text = repr(value)
    if isinstance(value, str | bytes | int | float):
        return text if len(text) <= LONG else text[: LONG - 1] + "…"
    return text if len(text) <= LONG and "\n" not in text else type(value).__name__


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """A finite float in the given range.

    >>> number("lr", 0.1, low=0)
    0.1
    >>> number("lr", -1, low=0)
    Traceback (most recent call last):
    ValueError: lr = -1: must be a finite number ≥ 0
    """
    wanted = "must be a finite number" + _range(low, high, open_low, open_high)
    try:
        # "0.1" would pass here and fail where somebody reckons with it. Tensors say RuntimeError.
        x = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{name} = {shown(value)}: {wanted}") from None
    outside = x < low or x > high or (open_low and x == low) or (open_high and x == high)
    if not math.isfinite(x) or outside:
        raise ValueError(f"{name} = {shown(value)}: {wanted}")
    return x


def whole(name: str, value: Any, *, low: int = 0) -> int:
    """An integer of at least `low`; 10.0 counts as 10, true and false as nothing."""
    if isinstance(value, bool | np.bool_) or not _is_whole(value) or int(value) < low:
        raise ValueError(f"{name} = {shown(value)}: must be a whole number ≥ {low}")
    return int(value)


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(sorted(allowed))}")
    return value


def flag(name: str, value: Any, *, optional: bool = False) -> None:
    """True or False, or None where that is an answer, too."""
    if not isinstance(value, bool | np.bool_) and not (optional and value is None):
        raise ValueError(f"{name} = {shown(value)}: must be True{', False or None' if optional else ' or False'}")


def series(
    name: str, value: ArrayLike, steps: int | None = None, *, low: float = -math.inf, open_low: bool = False
) -> Array:
    """A number, or one number a step, as an array of floats; `steps` fixes the length.

    >>> series("lr", 0.5, steps=3)
    array([0.5, 0.5, 0.5])
    >>> series("lr", [0.1, 0.2], steps=3)
    Traceback (most recent call last):
    ValueError: lr has 2 values: must be one number, or one for each of the 3 steps
    """
    wanted = "must be a finite number" + _range(low, math.inf, open_low, False)
    try:
        x = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        curve = f"; give {name} = ….values(steps)" if hasattr(value, "values") else ""
        raise ValueError(f"{name} = {shown(value)}: {wanted}, or an array with one such number a step{curve}") from None
    if x.ndim == 0:
        number(name, value, low=low, open_low=open_low)
        return np.full(1 if steps is None else steps, float(x))
    if x.ndim > 1:
        raise ValueError(f"{name} has shape {x.shape}: must be one number, or a one-dimensional array over the steps")
    if len(x) == 0 or (steps is not None and len(x) != steps):
        length = "at least one step" if steps is None else f"each of the {steps} steps"
        raise ValueError(f"{name} has {len(x)} values: must be one number, or one for {length}")
    bad = ~np.isfinite(x) | (x < low) | ((x == low) if open_low else False)
    if bad.any():
        t = int(np.argmax(bad))
        raise ValueError(f"{name}[{t}] = {float(x[t])!r}: {wanted}")
    return x


def length(steps: int | None, **values: ArrayLike) -> int:
    """The number of steps, given as such or by the length of an array."""
    if steps is not None:
        return whole("steps", steps, low=1)
    for name, value in values.items():
        x = series(name, value)
        if np.ndim(value) == 1:
            return len(x)
    names = " and ".join(values)
    raise ValueError(f"steps = None: must be a whole number ≥ 1 when {names} are single numbers")


def betas(value: Any) -> tuple[float, float]:
    """Two averaging factors in [0, 1)."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray) or len(value) != 2:
        raise ValueError(f"betas = {value!r}: must be two numbers in [0, 1)")
    first, second = (number(f"betas[{i}]", b, low=0, high=1, open_high=True) for i, b in enumerate(value))
    return first, second


def below_one(product: Array, lr: Array, weight_decay: Array, meaning: str) -> None:
    """Refuse a decay that takes the whole weight, or more, in a step."""
    bad = product >= 1
    if bad.any():
        t = int(np.argmax(bad))
        raise ValueError(
            f"{meaning} = {product[t]:.6g} at step {t + 1} (lr = {lr[t]:.6g}, weight_decay = {weight_decay[t]:.6g}): "
            "must be < 1, or the decay turns the weight round; lower lr or weight_decay"
        )


def _is_whole(value: Any) -> bool:
    try:
        return math.isfinite(value) and int(value) == value
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _range(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" {'>' if open_low else '≥'} {low:g}"
    return f" in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
