"""A run as a tidy table with one row per number: a data frame, a CSV file or a Parquet file."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise import _check
from equipoise.monitor.store import reading
from equipoise.monitor.store.archive import Segment
from equipoise.monitor.store.layout import LOG, Column
from equipoise.monitor.store.schema import FOREVER, RunError
from equipoise.monitor.store.tables import from_log

if TYPE_CHECKING:
    from equipoise.monitor.store.run import Run

FIELDS = ("step", "time", "kind", "quantity", "tensor", "quantile", "neuron", "value")
BACKENDS = ("pandas", "polars")
FORMATS = ("parquet", "csv")
CHUNK = 1_000_000
"""Numbers held at once while a file is written."""


@dataclass(frozen=True)
class _Chunk:
    """Some measured numbers; `column` numbers the columns of `columns`."""

    kind: str
    columns: Sequence[Column]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    column: NDArray[np.int64]
    values: NDArray[Any]


def _chunks(
    run: Run, keep: Callable[[Column], bool], start: int, stop: int | None, size: int = CHUNK
) -> Iterator[_Chunk]:
    """All measured numbers, kind after kind and layout after layout, in the order of steps."""
    archive = run._archive
    archive.read(lambda db: None)
    for segment in list(archive.segments.values()):
        take = [i for i, c in enumerate(segment.layout.columns) if keep(c)]
        end = min(FOREVER if stop is None else stop - 1, archive.cutoff(segment.session))
        at, most = start, max(1, size // max(1, len(take)))
        while take and at is not None and at <= end:
            steps, times, rows, at = archive.read(partial(_some, run, segment, at, end, most))
            if not rows:
                break
            values = np.stack(rows)[:, take]
            line, column = np.nonzero(~np.isnan(values))
            numbers = values[line, column]
            yield _Chunk(
                segment.layout.kind, [segment.layout.columns[i] for i in take], np.array(steps)[line],
                np.array(times)[line], column, from_log(numbers) if segment.layout.kind == LOG else numbers,
            )  # fmt: skip


def _some(
    run: Run, segment: Segment, start: int, end: int, most: int, db: sqlite3.Connection
) -> tuple[list[int], list[float], list[NDArray[Any]], int | None]:
    """A limited number of rows, and the step at which the next ones begin."""
    steps, times, rows = [], [], []
    for step, time, row in reading.raw_rows(run._archive, db, segment, start, end):
        if len(rows) == most:
            return steps, times, rows, step
        steps.append(step)
        times.append(time)
        rows.append(row)
    return steps, times, rows, None


def _fields(chunk: _Chunk) -> dict[str, Any]:
    """What the columns of a chunk are, one entry a column of the layout."""
    return {name: [getattr(c, name) for c in chunk.columns] for name in ("quantity", "tensor", "quantile", "neuron")}


def frame(
    run: Run,
    *,
    quantity: str | Sequence[str] | None = None,
    tensor: str | Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    backend: str | None = None,
) -> Any:
    """The run as a data frame; see `Run.frame`."""
    library = _backend(backend)
    columns = run.columns
    first = _chosen("quantity", quantity, {c.quantity for c in columns})
    second = _chosen("tensor", tensor, {c.tensor for c in columns} - {None})
    chunks = list(
        _chunks(
            run,
            lambda c: (first is None or c.quantity in first) and (second is None or c.tensor in second),
            _check.whole("start", start),
            None if stop is None else _check.whole("stop", stop),
        )
    )
    if not chunks:
        empty = np.empty(0)
        data = {name: empty.astype(np.int64) if name == "step" else empty for name in FIELDS}
        return library.DataFrame(data)
    data = {
        "step": np.concatenate([c.steps for c in chunks]),
        "time": np.concatenate([c.times for c in chunks]),
        "kind": _words(library, [([c.kind], np.zeros(len(c.steps), np.int64)) for c in chunks]),
    }
    for name in ("quantity", "tensor"):
        data[name] = _words(library, [(_fields(c)[name], c.column) for c in chunks])
    for name in ("quantile", "neuron"):
        data[name] = np.concatenate([np.array(_fields(c)[name], np.float64)[c.column] for c in chunks])
    data["value"] = np.concatenate([c.values for c in chunks])
    return library.DataFrame(data)


def _chosen(name: str, wanted: str | Sequence[str] | None, known: set[Any]) -> set[str] | None:
    if wanted is None:
        return None
    names = {wanted} if isinstance(wanted, str) else set(wanted)
    for absent in sorted(names - known):
        raise RunError(f"{name} = {absent!r}: was not measured; there are {', '.join(sorted(known)[:8]) or 'none'}")
    return names


def _words(library: Any, parts: list[tuple[list[str | None], NDArray[np.int64]]]) -> Any:
    """Repeated words as a categorical column: one small number a line."""
    known = list(dict.fromkeys(word for words, _ in parts for word in words if word is not None))
    code = {word: i for i, word in enumerate(known)} | {None: -1}
    codes = np.concatenate([np.array([code[w] for w in words], np.int32)[which] for words, which in parts])
    if library.__name__ == "pandas":
        return library.Categorical.from_codes(codes, known)
    words = library.Series(known, dtype=library.String)
    places = library.Series(codes).cast(library.Int32)
    return words.gather(places.set(places < 0, None)).cast(library.Categorical)


def _backend(name: str | None) -> Any:
    if name is not None:
        _check.choice("backend", name, BACKENDS)
    for wanted in BACKENDS if name is None else (name,):
        if importlib.util.find_spec(wanted) is not None:
            return importlib.import_module(wanted)
    missing = "neither pandas nor polars" if name is None else f"no {name}"
    how = "pip install polars" if name == "polars" else "pip install 'equipoise[frame]'"
    raise RunError(f"backend = {name!r}: {missing} is installed; {how}")


def write(run: Run, to: str | None = None, output: str | os.PathLike[str] | None = None) -> tuple[Path, int]:
    """Write all measured numbers into one file, a piece at a time.

    Args:
        run: the run.
        to: "parquet" or "csv". Default: as the file's name ends, or "csv".
        output: the file; the run's name beside the run if not given.

    Returns:
        The file, and how many numbers it has.
    """
    ending = "" if output is None else Path(output).suffix.removeprefix(".").lower()
    if to is None:
        to = ending if ending in FORMATS else "csv"
    elif ending in FORMATS and ending != _check.choice("--to", to, FORMATS):
        raise ValueError(f"--to = {to!r} does not match the file {str(output)!r}; leave out --to")
    _check.choice("--to", to, FORMATS)
    target = run.path.with_name(f"{run.path.absolute().name}.{to}") if output is None else Path(output)
    chunks = _chunks(run, lambda _: True, 0, None)
    try:
        return target, (_parquet if to == "parquet" else _csv)(chunks, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror or error}); give another file with -o") from None


def _csv(chunks: Iterator[_Chunk], target: Path) -> int:
    lines = 0
    with target.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for chunk in chunks:
            about = [tuple(map(_cell, each)) for each in zip(*_fields(chunk).values(), strict=True)]
            # str of a float32 is the shortest text that reads back as the same float32.
            kind = _cell(chunk.kind)
            numbers = zip(chunk.steps.tolist(), chunk.times.tolist(), chunk.column, chunk.values, strict=True)
            writer.writerows((step, time, kind, *about[c], str(value)) for step, time, c, value in numbers)
            lines += len(chunk.steps)
    return lines


def _cell(value: Any) -> Any:
    """A cell of a CSV file, which no program that opens it takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _parquet(chunks: Iterator[_Chunk], target: Path) -> int:
    if importlib.util.find_spec("pyarrow") is None:
        raise RunError("--to = 'parquet': needs pyarrow; pip install 'equipoise[parquet]', or use --to csv")
    import pyarrow as pa
    from pyarrow import parquet

    word = pa.dictionary(pa.int32(), pa.string())
    types = (pa.int64(), pa.float64(), word, word, word, pa.float64(), pa.int64(), pa.float64())
    schema = pa.schema(list(zip(FIELDS, types, strict=True)))
    lines = 0
    with parquet.ParquetWriter(target, schema) as file:
        for chunk in chunks:
            fields = {name: pa.array(values).take(pa.array(chunk.column)) for name, values in _fields(chunk).items()}
            kind = pa.array([chunk.kind]).take(pa.array(np.zeros(len(chunk.steps), np.int64)))
            arrays = [pa.array(chunk.steps), pa.array(chunk.times), kind, *fields.values(), pa.array(chunk.values)]
            file.write_table(
                pa.Table.from_arrays([a.cast(t) for a, t in zip(arrays, types, strict=True)], schema=schema)
            )
            lines += len(chunk.steps)
    return lines
