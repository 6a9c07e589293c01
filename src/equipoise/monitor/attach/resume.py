"""Read what a resumed run has stored before a watch continues it."""

from __future__ import annotations

import os

from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import FILE


def earlier(path: str | os.PathLike[str]) -> tuple[int, dict[str, float]]:
    """The last step of the run that is there, and the norms that its tensors began with; 0 and none without a run."""
    if not os.path.exists(os.path.join(path, FILE)):
        return 0, {}
    with Run.open(path) as run:
        norms = {name: t.info["init_norm"] for name, t in run.tensors.items() if "init_norm" in t.info}
        return run.coverage.taken, norms
