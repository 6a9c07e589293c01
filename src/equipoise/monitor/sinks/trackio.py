"""To Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, final

from equipoise._extras import need
from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Place, text_of

LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


@final
class Trackio:
    """Logs numbers into a run of Trackio, and findings as its alerts.

    Args:
        run: of `trackio.init`. None: the active one, or else a new one.
        project: of a new run.
        name: of a new run; an existing one of this name continues if `resume` is set.
        resume: whether to continue it.
        after: steps up to this one were already sent.
        every_seconds: least seconds between two sends, after the first hundred.
    """

    def __init__(
        self,
        run: Any = None,
        *,
        project: str = "equipoise",
        name: str | None = None,
        resume: bool = False,
        after: int = 0,
        every_seconds: float = 5.0,
    ) -> None:
        trackio = need("trackio", "trackio")
        self.after, self.every_seconds = after, every_seconds
        self._level = trackio.AlertLevel
        run = _active() if run is None else run
        self._own = run is None
        if run is None:
            run = trackio.init(project=project, name=name, resume="allow" if resume else "never", embed=False)
            # Not the caller's: their own init would end it.
            trackio.context_vars.current_run.set(None)
        self._run = run

    @classmethod
    def of(cls, place: Place) -> Self:
        """The active run, or one named after the run's directory."""
        active, memory = _active(), place.memory
        if active is not None:
            return cls(active, after=place.after(name=active.name, project=active.project))
        if memory:
            return cls(project=memory["project"], name=memory["name"], resume=True, after=place.after())
        return cls(name=place.path.absolute().name)

    @property
    def memory(self) -> dict[str, Any]:
        """What the run stores, to continue here after a resume."""
        return {"project": self._run.project, "name": self._run.name}

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """One row."""
        self._run.log(dict(numbers), step=step)

    def finding(self, step: int, finding: Finding) -> None:
        """An alert."""
        level = getattr(self._level, LEVELS[finding.severity])
        self._run.alert(title=f"equipoise: {finding.code}", text=text_of(finding), level=level, step=step)

    def close(self, status: str) -> None:
        """Finish the run if it was started here."""
        if self._own:
            self._run.finish()


def _active() -> Any:
    return need("trackio", "trackio").context_vars.current_run.get()
