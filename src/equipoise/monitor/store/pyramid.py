"""Summaries (minimum, mean, maximum) over blocks of rows, so that a long run can be drawn from a few of them.

A bucket of level 1 summarises 16 consecutive rows of a segment, one of level k + 1 four of level k. NaN means "not
measured" and is left out; a column without any number has count 0 and NaN for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BASE = 16
"""Rows in a bucket of level 1."""

FACTOR = 4
"""Buckets of a level in one of the next."""

TILE = 256
"""Columns in one stored blob, so that a series is read without the rest of a wide row."""


def span(level: int) -> int:
    """Rows in a bucket of a level; a row by itself is level 0.

    >>> [span(level) for level in range(4)]
    [1, 16, 64, 256]
    """
    return 1 if level == 0 else BASE * FACTOR ** (level - 1)


@dataclass(frozen=True)
class Buckets:
    """Buckets, one a line of each array.

    Attributes:
        seq: number of the first row within its segment; −1 where it is not known.
        rows: how many rows.
        first: step of the first row.
        last: step of the last row.
        time: time of the last row.
        low: smallest value of each column.
        mean: mean value of each column.
        high: largest value of each column.
        count: how many of the rows had a number, for each column.
    """

    seq: NDArray[np.int64]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    time: NDArray[np.float64]
    low: NDArray[Any]
    mean: NDArray[Any]
    high: NDArray[Any]
    count: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)

    def take(self, which: Any) -> Buckets:
        """Some of the buckets."""
        return Buckets(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def of_rows(steps: Any, times: Any, values: NDArray[Any], seq: int = -1) -> Buckets:
    """Rows as buckets of one row each."""
    n = len(values)
    numbers = np.arange(seq, seq + n) if seq >= 0 else np.full(n, -1)
    steps = np.asarray(steps, np.int64)
    return Buckets(
        numbers, np.ones(n, np.int64), steps, steps, np.asarray(times, np.float64), values, values, values,
        (~np.isnan(values)).astype(np.int64),
    )  # fmt: skip


def join(parts: list[Buckets]) -> Buckets:
    """Buckets one after another."""
    if len(parts) == 1:
        return parts[0]
    return Buckets(*(np.concatenate([getattr(p, name) for p in parts]) for name in Buckets.__dataclass_fields__))


def merge(parts: Buckets, starts: Any) -> Buckets:
    """One bucket for the buckets from each start to before the next."""
    starts = np.asarray(starts)
    ends = np.append(starts[1:], len(parts)) - 1
    with np.errstate(all="ignore"):  # inf − inf is NaN, and that is what there is to say of it
        count = np.add.reduceat(parts.count, starts)
        # A bucket without numbers adds 0 and not NaN·0.
        sums = np.where(parts.count > 0, parts.mean, 0).astype(np.float64) * parts.count
        mean = np.add.reduceat(sums, starts) / np.where(count > 0, count, np.nan)
        return Buckets(
            parts.seq[starts], np.add.reduceat(parts.rows, starts), parts.first[starts], parts.last[ends],
            parts.time[ends], np.fmin.reduceat(parts.low, starts), mean, np.fmax.reduceat(parts.high, starts), count,
        )  # fmt: skip


def thin(parts: Buckets, points: int) -> Buckets:
    """Put neighbours together, as evenly as can be, so that there are so many buckets of at least as many."""
    return merge(parts, np.arange(points) * len(parts) // points)


class Builder:
    """Takes the rows of a segment as they come, and gives each bucket that they complete."""

    def __init__(self) -> None:
        self._waiting: list[list[Buckets]] = []
        self._rows: list[tuple[int, float, bytes]] = []
        self._seq = 0

    def add(self, step: int, time: float, row: bytes, dtype: np.dtype[Any]) -> Sequence[tuple[int, Buckets]]:
        """Add a row as it is stored; gives (level, bucket) for the level that it completes, and those above."""
        self._rows.append((step, time, row))
        if len(self._rows) < BASE:
            return ()
        steps, times, data = zip(*self._rows, strict=True)
        values = np.frombuffer(b"".join(data), dtype).reshape(BASE, -1)
        bucket = merge(of_rows(steps, times, values, self._seq), [0])
        self._seq += BASE
        self._rows = []
        return self._complete(bucket)

    def _complete(self, bucket: Buckets) -> list[tuple[int, Buckets]]:
        """The bucket of the first level, and those above that it completes."""
        made = [(1, bucket)]
        for level in range(1, 64):
            if len(self._waiting) < level:
                self._waiting.append([])
            waiting = self._waiting[level - 1]
            waiting.append(bucket)
            if len(waiting) < FACTOR:
                break
            bucket = merge(join(waiting), [0])  # means are float64 until they are stored
            waiting.clear()
            made.append((level + 1, bucket))
        return made

    def restart(self, stored: int) -> None:
        """Begin anew after rows were lost: a bucket holds only rows that follow each other.

        Args:
            stored: how many rows of the segment are stored; the next row has this number.
        """
        self._waiting, self._rows, self._seq = [], [], stored


def tiles(columns: int) -> range:
    """Where the tiles of a row begin."""
    return range(0, columns, TILE)


def encode(bucket: Buckets, start: int, dtype: np.dtype[Any]) -> bytes:
    """The columns of one tile of a bucket: low, mean, high in the row's dtype, then counts as 32-bit integers."""
    part = slice(start, start + TILE)
    with np.errstate(all="ignore"):
        numbers = [getattr(bucket, name)[0, part].astype(dtype).tobytes() for name in ("low", "mean", "high")]
    return b"".join(numbers) + bucket.count[0, part].astype("<u4").tobytes()


def decode(blobs: list[bytes], width: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], ...]:
    """Low, mean, high and count of the blobs of one tile, a line a bucket."""
    lines = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), tile_bytes(width, dtype))
    size = width * dtype.itemsize
    low, mean, high = (
        np.ascontiguousarray(lines[:, i * size : (i + 1) * size]).view(dtype).astype(dtype.newbyteorder("="))
        for i in range(3)
    )
    count = np.ascontiguousarray(lines[:, 3 * size :]).view("<u4").astype(np.int64)
    return low, mean, high, count


def tile_bytes(width: int, dtype: np.dtype[Any]) -> int:
    """Length of the blob of a tile."""
    return width * (3 * dtype.itemsize + 4)
