"""Find the rows that have the requested columns, or say which columns there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from equipoise.monitor.store.archive import Archive, Segment
from equipoise.monitor.store.layout import Column, Layout
from equipoise.monitor.store.schema import RunError


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
