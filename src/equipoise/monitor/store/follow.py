"""Follow a run: read only its new rows."""

from __future__ import annotations

import sqlite3

import numpy as np

from equipoise.monitor.store import reading
from equipoise.monitor.store.archive import Archive
from equipoise.monitor.store.tables import Rows


class Follower:
    """Returns the rows since its last call; see `Run.follow`."""

    def __init__(self, archive: Archive, kind: str) -> None:
        self._archive, self._kind = archive, kind
        self._seen = 0
        self._session = 0

    def skip(self, keep: int = 0) -> None:
        """Skip all existing rows except the last ones; `read` then starts with those.

        Args:
            keep: how many.
        """
        self._archive.read(lambda db: self._skip(db, keep))

    def _skip(self, db: sqlite3.Connection, keep: int) -> None:
        mine = [s.number for s in self._archive.segments.values() if s.layout.kind == self._kind]
        marks = ", ".join("?" * len(mine))
        sql = f"SELECT id FROM rows WHERE segment IN ({marks}) ORDER BY id DESC LIMIT 1 OFFSET ?"
        line = db.execute(sql, (*mine, keep)).fetchone()
        self._seen = max(self._seen, line[0] if line else 0)

    def read(self, limit: int = 10_000) -> list[Rows]:
        """New rows, grouped by layout, at most `limit` of them; an empty list when there are none."""
        while True:
            before = self._seen
            found = self._archive.read(lambda db: self._read(db, limit))
            if found or self._seen == before:  # else there were rows of other kinds alone
                return found

    def _read(self, db: sqlite3.Connection, limit: int) -> list[Rows]:
        archive, found = self._archive, []
        lines = db.execute(
            "SELECT id, segment FROM rows WHERE id > ? ORDER BY id LIMIT ?", (self._seen, limit)
        ).fetchall()
        segments = dict.fromkeys(number for _, number in lines)
        for number in segments:
            segment = archive.segments.get(number)
            if segment is None or segment.layout.kind != self._kind:
                continue
            ids = [i for i, s in lines if s == number]
            start, stop = db.execute(
                "SELECT min(step), max(step) FROM rows"
                " WHERE segment = ? AND id BETWEEN ? AND ? AND typeof(step) = 'integer'",
                (number, ids[0], ids[-1]),
            ).fetchone()
            if start is None:  # damage has changed the type of every step
                continue
            rows = list(reading.raw_rows(archive, db, segment, start, min(stop, archive.cutoff(segment.session))))
            if rows:
                steps, times, values = zip(*rows, strict=True)
                rewound = steps[0] - 1 if 0 < self._session < segment.session else None
                found.append(Rows(segment.layout, np.array(steps), np.array(times), np.stack(values), rewound))
                self._session = segment.session
        self._seen = lines[-1][0] if lines else self._seen
        return found
