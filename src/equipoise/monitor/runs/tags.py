"""Tags of runs, in the run's meta or in a file next to the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.monitor.store.run import Run

TAGS = "tags.json"
"""The file in a run's directory; the run itself is never written to by who looks at it."""

LONGEST = 60
"""Letters of a tag."""


def tags_of(path: Path, meta: Mapping[str, Any]) -> list[str]:
    """The tags of a run: those of its meta ("tags"), then those of its file; what is no list of words is none."""
    given = meta.get("tags", [])
    mine = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []
    return list(dict.fromkeys(str(t)[:LONGEST] for t in (*mine, *_read(path)) if str(t).strip()))


def change_tags(path: str | os.PathLike[str], add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Give tags to a run, or take those away that were given so; returns what its file has then.

    Raises:
        ValueError: a tag is empty, too long, or has a space or comma in it.
        RunError: there is no run.
    """
    for tag in (*add, *remove):
        if not tag or len(tag) > LONGEST or any(c.isspace() or c == "," for c in tag):
            raise ValueError(f"tag = {tag!r}: must be one word of 1 to {LONGEST} letters, without spaces and commas")
    with Run.open(path) as run:
        directory = run.path
    kept = [t for t in dict.fromkeys([*_read(directory), *add]) if t not in remove]
    target = directory / TAGS
    if kept:
        fresh = directory / f"{TAGS}.new"
        fresh.write_text(json.dumps(kept, ensure_ascii=False) + "\n", encoding="utf-8")
        fresh.replace(target)  # whoever reads sees the old tags or the new ones
    else:
        target.unlink(missing_ok=True)
    return kept


def _read(directory: Path) -> list[str]:
    file = directory / TAGS
    try:
        if file.is_symlink() or file.stat().st_size > 100_000:  # a link may lead out of the directory that is shown
            return []
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [t for t in found if isinstance(t, str)] if isinstance(found, list) else []
