"""What flags are read as: counts, and key=value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer


def integer(low: int = 1) -> Callable[[str | int], int]:
    """The parser of a flag that takes a whole number of at least `low`, written as 124000000, 124_000_000 or 124e6.

    >>> integer()("124e6"), integer()("12345678901234567891")
    (124000000, 12345678901234567891)
    """

    def read(text: str | int) -> int:
        for kind in (int, float):  # a float is exact up to 2^53 alone
            try:
                value = kind(text)
                if value == int(value) >= low:
                    return int(value)
            except (ValueError, OverflowError):
                continue
        raise typer.BadParameter(f"{text}: must be a whole number ≥ {low}, such as 20000 or 2e4")

    return read


def split(flag: str, text: str, example: str = "lr=1e-3,1e-2") -> tuple[str, str]:
    """key=value in two."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{flag} = {text!r}: must be key=value, for example {example}")
    return key, value


def read_values(text: str) -> list[Any]:
    """Values with commas between them: all as JSON has them, or numbers and words.

    >>> read_values("1e-3,2"), read_values("batch,layer"), read_values("[0.9,0.95],[0.9,0.99]"), read_values("true")
    ([0.001, 2], ['batch', 'layer'], [[0.9, 0.95], [0.9, 0.99]], [True])
    """
    try:
        return json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return [_read(word.strip()) for word in text.split(",")]


def _read(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
