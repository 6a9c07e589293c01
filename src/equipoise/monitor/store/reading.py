"""Which rows have some columns, and those columns at any level of the pyramid; holes come from the level below."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.store import pyramid
from equipoise.monitor.store.archive import Archive, Segment
from equipoise.monitor.store.layout import Column, Layout
from equipoise.monitor.store.pyramid import Buckets
from equipoise.monitor.store.schema import RunError, intact

PIECE = 256
"""Buckets that are unpacked at once: those of all columns of a tile take far more room than the wanted ones."""


def level_for(rows: int, points: int | None, fine: int | None = None) -> int:
    """The lowest level that has no more than so many points.

    With `fine` lines to be read, one that has no fewer, so that neighbours can be put together to as many points as
    were asked for: level 1 is 16 times as coarse as rows, the others 4 times as coarse as the ones below.

    >>> [level_for(100_000, points) for points in (None, 100_000, 10_000, 2000)]
    [0, 0, 1, 2]
    >>> [level_for(rows, 400, fine=6400) for rows in (6400, 6401, 25_600, 25_601)]
    [0, 1, 1, 2]
    """
    if points is None or rows <= max(points, fine or 0):
        return 0
    most = points if fine is None else max(points, min(fine, pyramid.FACTOR * points))
    level = 1
    while -(-rows // pyramid.span(level)) > most:
        level += 1
    return level


def count_rows(db: sqlite3.Connection, segment: Segment, start: int, stop: int) -> int:
    """How many rows lie in a range of steps, both ends included."""
    sql = "SELECT count(*) FROM rows WHERE segment = ? AND step BETWEEN ? AND ?"
    return db.execute(sql, (segment.number, start, stop)).fetchone()[0]


def raw_rows(
    archive: Archive, db: sqlite3.Connection, segment: Segment, start: int, stop: int
) -> Iterator[tuple[int, float, NDArray[Any]]]:
    """Step, time and numbers of every intact row in a range of steps, both ends included, the draft's last."""
    dtype, size = segment.layout.stored, len(segment.layout) * segment.layout.stored.itemsize
    sql = "SELECT id, step, time, data, crc FROM rows WHERE segment = ? AND step BETWEEN ? AND ? ORDER BY step"
    for number, step, time, data, crc in db.execute(sql, (segment.number, start, stop)):
        if intact(crc, data, segment.number, step, time) and len(data) == size:
            yield step, time, np.frombuffer(data, dtype)
        else:
            archive.bad("rows", number)
    draft = archive.drafts.get(segment.number)
    if draft is not None and start <= draft[0] <= stop and len(draft[2]) == size:
        yield draft[0], draft[1], np.frombuffer(draft[2], dtype)


class View:
    """Some columns of a segment.

    Args:
        archive: where damage is noted.
        db: the state of the file to read.
        segment: whose rows.
        columns: which columns; NaN where the segment does not have them.
    """

    def __init__(self, archive: Archive, db: sqlite3.Connection, segment: Segment, columns: Sequence[Column]) -> None:
        self._archive, self._db, self._segment = archive, db, segment
        places = segment.layout.places
        self._take = [places.get(column, 0) for column in columns]
        self._absent = np.array([column not in places for column in columns], bool)

    def summarise(self, level: int, start: int, stop: int) -> Buckets:
        """Buckets of a level over a range of steps, both ends included; shorter ones where rows are left over."""
        if level == 0:
            return self._rows(start, stop)
        buckets = self._buckets(level, start, stop)
        # Buckets that follow each other have numbers that do; anything else is a hole to fill from below.
        follows = buckets.seq[1:] == buckets.seq[:-1] + buckets.rows[:-1]
        begins = [0, *(np.flatnonzero(~follows) + 1), len(buckets)] if len(buckets) else []
        parts, at = [], start
        for begin, end in pairwise(begins):
            if buckets.seq[begin] != 0:
                parts.append(self._fill(level, at, int(buckets.first[begin]) - 1))
            parts.append(buckets.take(slice(begin, end)))
            at = int(buckets.last[end - 1]) + 1
        return pyramid.join([*parts, self._fill(level, at, stop)])

    def _fill(self, level: int, start: int, stop: int) -> Buckets:
        """A hole in a level, from the level below, in buckets as large as the level's."""
        below = self.summarise(level - 1, start, stop)
        if not len(below):
            return below
        group = (np.cumsum(below.rows) - below.rows) // pyramid.span(level)
        return pyramid.merge(below, np.flatnonzero(np.diff(group, prepend=-1)))

    def _rows(self, start: int, stop: int) -> Buckets:
        steps, times, values = [], [], []
        for step, time, row in raw_rows(self._archive, self._db, self._segment, start, stop):
            steps.append(step)
            times.append(time)
            values.append(row[self._take])  # a copy: the rest of a wide row need not stay in memory
        table = np.array(values, self._segment.layout.dtype).reshape(len(values), len(self._take))
        table[:, self._absent] = np.nan
        return pyramid.of_rows(steps, times, table)

    def _buckets(self, level: int, start: int, stop: int) -> Buckets:
        tiles = sorted({i // pyramid.TILE for i in self._take})
        found = {tile: self._tile(level, tile, start, stop) for tile in tiles}
        # Only buckets of which every tile is intact; the others are holes.
        common = sorted(set.intersection(*(set(about) for about, _ in found.values())))
        shape = (len(common), len(self._take))
        low, mean, high = (np.empty(shape, self._segment.layout.dtype) for _ in range(3))
        count = np.empty(shape, np.int64)
        for tile, (about, parts) in found.items():
            mine = self._mine(tile)
            at = [about[number][0] for number in common]
            for array, part in zip((low, mean, high, count), parts, strict=True):
                array[:, mine] = part[at]
        for array in (low, mean, high):
            array[:, self._absent] = np.nan
        count[:, self._absent] = 0
        lines = [found[tiles[0]][0][number] for number in common]
        rows, first, last = (np.array([line[k] for line in lines], np.int64) for k in range(1, 4))
        time = np.array([line[4] for line in lines], np.float64)
        return Buckets(np.array(common, np.int64), rows, first, last, time, low, mean, high, count)

    def _mine(self, tile: int) -> list[int]:
        """Which of the wanted columns lie in a tile."""
        return [k for k, i in enumerate(self._take) if i // pyramid.TILE == tile]

    def _tile(
        self, level: int, tile: int, start: int, stop: int
    ) -> tuple[dict[int, tuple[int, int, int, int, float]], list[NDArray[Any]]]:
        """The intact buckets of a tile, and low, mean, high and count of the wanted columns in it.

        A bucket is known by the number of its first row and has the number of its line, rows, first, last and time.
        """
        width, stored = self._width(tile), self._segment.layout.stored
        size = pyramid.tile_bytes(width, stored)
        sql = (
            "SELECT id, seq, rows, first, last, time, data, crc FROM buckets "
            "WHERE segment = ? AND level = ? AND tile = ? AND first BETWEEN ? AND ? ORDER BY first"
        )
        place = (self._segment.number, level, tile)
        within = [self._take[k] % pyramid.TILE for k in self._mine(tile)]
        about: dict[int, tuple[int, int, int, int, float]] = {}
        blobs: list[bytes] = []
        pieces: list[list[NDArray[Any]]] = []

        def unpack() -> None:
            pieces.append([part[:, within] for part in pyramid.decode(blobs, width, stored)])
            blobs.clear()

        for number, seq, rows, first, last, time, data, crc in self._db.execute(sql, (*place, start, stop)):
            if not intact(crc, data, *place, seq, rows, first, last, time) or len(data) != size:
                self._archive.bad("buckets", number)
            elif last <= stop and seq not in about:
                about[seq] = (len(about), rows, first, last, time)
                blobs.append(data)
                if len(blobs) == PIECE:
                    unpack()
        unpack()
        return about, [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

    def _width(self, tile: int) -> int:
        return min(pyramid.TILE, len(self._segment.layout) - tile * pyramid.TILE)


def choose(
    archive: Archive, columns: Sequence[Column] | None, kind: str | None
) -> tuple[list[Segment], Sequence[Column]]:
    """The segments of the one kind that has the columns, and which columns those are.

    Args:
        archive: the run.
        columns: which; None for all of the kind.
        kind: which kind of rows; None for the only one that has the columns.
    """
    layouts: dict[str, list[Layout]] = {}
    for layout in archive.known_layouts():
        layouts.setdefault(layout.kind, []).append(layout)
    if kind is not None and kind not in layouts:
        raise RunError(f"kind = {kind!r}: the run has {_some(layouts)}")
    kinds = list(layouts) if kind is None else [kind]
    if columns is None:
        if len(kinds) != 1:
            raise RunError(f"kind = None: must be given, because the run has {_some(kinds)}")
        columns = list(dict.fromkeys(c for layout in layouts[kinds[0]] for c in layout.columns))
    having = {k: set().union(*(layout.places for layout in layouts[k])) for k in kinds}
    for column in columns:
        if not any(column in places for places in having.values()):
            known = dict.fromkeys(c for k in kinds for layout in layouts[k] for c in layout.columns)
            raise RunError(f"{column}: was not measured; {_near(column, known)}")
    fits = [k for k, places in having.items() if columns and places.issuperset(columns)]
    if not fits:
        raise RunError("columns: must be one or more, and all of one kind")
    if len(fits) > 1:
        raise RunError(f"kind = None: must be given, because {columns[0]} is in {_some(fits)}")
    return [s for s in archive.segments.values() if s.layout.kind == fits[0]], columns


def _near(wanted: Column, known: Iterable[Column]) -> str:
    """What there is instead of a column, in the order in which people get it wrong."""
    same = [c for c in known if c.quantity == wanted.quantity]
    if not same:
        return f"quantities are {_some(dict.fromkeys(c.quantity for c in known))}"
    here = [c for c in same if c.tensor == wanted.tensor]
    return f"there are {_some(str(c) for c in here or same)}"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return (", ".join(names[:8]) + (", …" if len(names) > 8 else "")) or "nothing yet"
