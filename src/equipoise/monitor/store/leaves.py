"""Read the lines of a run's tables from the pages of its file, one page at a time, without SQLite.

Trees of pages are not followed and nothing of the file's schema is used, so that no damage hides what is whole, and
nothing that a file says can be run. A line counts if its checksum holds. The format: https://sqlite.org/fileformat2.html
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEAF, INDEX_LEAF = 0x0D, 0x0A
PAGE = 4096
"""Bytes of a page, where the header is damaged: what SQLite takes unless told otherwise."""

CHAINS = 4
"""So many times the bytes of the file are read of lines that go on from page to page; more are chains that are tied."""

WHOLE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of the whole numbers, by their type."""

LOG = 1 << 27
"""Bytes of a WAL file that are read: a writer holds back 64 MB at most."""


class Pages:
    """The pages of a file, those in its WAL file first.

    Args:
        file: the file; `file-wal` is read, too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("rb", buffering=0)
        self.bytes = os.fstat(self._file.fileno()).st_size
        header = self._read(0, 100)
        size = int.from_bytes(header[16:18], "big")
        size = 65536 if size == 1 else size
        self.size = size if size >= 512 and not size & (size - 1) else PAGE
        reserved = header[20] if len(header) > 20 else 0
        self.usable = self.size - (reserved if reserved < 33 else 0)
        self.left = CHAINS * self.bytes
        self._newer = dict(self._log(file.with_name(f"{file.name}-wal")))

    def _log(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Number and content of each page in the WAL file that was committed."""
        if not file.is_file():
            return
        try:
            with file.open("rb") as opened:
                data = opened.read(LOG)
        except OSError:
            return
        salts, commit = data[16:24], {}
        for at in range(32, len(data) - 23 - self.size, self.size + 24):
            if data[at + 8 : at + 16] != salts:
                return  # left from before the log began anew
            commit[int.from_bytes(data[at : at + 4], "big")] = data[at + 24 : at + 24 + self.size]
            if any(data[at + 4 : at + 8]):  # the last page of a commit
                yield from commit.items()
                commit = {}

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, max(-(-self.bytes // self.size), *self._newer, 0) + 1))

    def __getitem__(self, number: int) -> bytes:
        """A page; shorter at the end of a file that was cut off."""
        newer = self._newer.get(number)
        return self._read((number - 1) * self.size, self.size) if newer is None else newer

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def cells(file: Path, deadline: float = math.inf) -> Iterator[tuple[int | None, list[Any]]]:
    """Number and columns of every line on every leaf; a line of an index has no number.

    Args:
        file: an SQLite file, in whatever state.
        deadline: when to stop, by `time.monotonic`.
    """
    pages = Pages(file)
    try:
        yield from _cells(pages, deadline)
    finally:
        pages.close()


def _cells(pages: Pages, deadline: float) -> Iterator[tuple[int | None, list[Any]]]:
    for number in pages:
        if time.monotonic() > deadline:
            return
        page, start = pages[number], 100 if number == 1 else 0
        if len(page) < start + 8 or page[start] not in (LEAF, INDEX_LEAF):
            continue
        table = page[start] == LEAF
        (count,) = struct.unpack_from(">H", page, start + 3)
        for at in range(start + 8, min(start + 8 + 2 * count, len(page) - 1), 2):
            try:
                found = _cell(pages, page, int.from_bytes(page[at : at + 2], "big"), table)
            except (IndexError, ValueError, struct.error):  # damaged
                continue
            yield found


def _cell(pages: Pages, page: bytes, at: int, table: bool) -> tuple[int | None, list[Any]]:
    size, at = _varint(page, at)
    number = None
    if table:
        number, at = _varint(page, at)
        number -= (number >> 63) << 64
    usable = pages.usable
    most = usable - 35 if table else (usable - 12) * 64 // 255 - 23
    if size <= most:
        return number, _columns(page[at : at + size], size)
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    local = local if local <= most else least
    parts, left = [page[at : at + local]], size - local
    pages.left -= left
    if pages.left < 0:
        raise ValueError
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    while left > 0 and following:
        more = pages[following][:usable]
        following, part = int.from_bytes(more[:4], "big"), more[4 : 4 + left]
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return number, _columns(b"".join(parts), size)


def _columns(record: bytes, size: int) -> list[Any]:
    if len(record) < size:
        raise ValueError
    at_end, at = _varint(record, 0)
    kinds, place = [], at_end
    while at < at_end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    found: list[Any] = []
    for kind in kinds:
        if kind in WHOLE:
            found.append(int.from_bytes(record[place : place + WHOLE[kind]], "big", signed=True))
            place += WHOLE[kind]
        elif kind == 7:
            found.append(struct.unpack_from(">d", record, place)[0])
            place += 8
        elif kind >= 12:
            part = record[place : place + (kind - 12) // 2]
            found.append(part if kind % 2 == 0 else part.decode("utf-8", "replace"))
            place += (kind - 12) // 2
        else:
            found.append({8: 0, 9: 1}.get(kind))
    if place > size:
        raise ValueError
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where the next one begins."""
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value << 8 | data[at + 8], at + 9
