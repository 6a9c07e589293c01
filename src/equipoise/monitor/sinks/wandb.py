"""To Weights & Biases, online or offline."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Self, final

from equipoise._extras import need
from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Place, text_of

log = logging.getLogger("equipoise.monitor")

LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}
STEP = "equipoise/step"


@final
class WandB:
    """Logs numbers into a run of W&B, and raises findings as its alerts.

    In a run that you started, numbers join the next row that you commit, with `equipoise/step` as their axis:
    your own steps never move. A run that is started here has the steps of training.

    Args:
        run: of `wandb.init`. None: the active one, or else a new one, offline if W&B cannot be reached.
        directory: where a new run keeps its files.
        project: of a new run.
        name: of a new run.
        id: of a run to continue.
        after: steps up to this one were already sent.
        every_seconds: least seconds between two sends, after the first hundred.
    """

    def __init__(
        self,
        run: Any = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,
        after: int = 0,
        every_seconds: float = 5.0,
    ) -> None:
        wandb = need("wandb", "wandb")
        self.after, self.every_seconds = after, every_seconds
        run = wandb.run if run is None else run
        self._own = run is None
        if run is None:
            folder = None if directory is None else os.fspath(directory)
            run = _new(wandb, dir=folder, project=project or _project(), name=name, id=id)
        self._run = run
        if not self._own:
            run.define_metric(STEP, hidden=True)
            run.define_metric("equipoise/*", step_metric=STEP)

    @classmethod
    def of(cls, place: Place) -> Self:
        """The active run, or one named after the run's directory."""
        active = need("wandb", "wandb").run
        if active is not None:
            return cls(active, after=place.after(id=active.id))
        name = place.path.absolute().name
        return cls(directory=place.path, name=name, id=place.memory.get("id"), after=place.after())

    @property
    def memory(self) -> dict[str, Any]:
        """What the run stores, to continue here after a resume."""
        return {"id": self._run.id}

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """One row of history, or a part of your next row."""
        if self._own:
            self._run.log(dict(numbers), step=step)
        else:
            self._run.log({**numbers, STEP: step}, commit=False)

    def finding(self, step: int, finding: Finding) -> None:
        """An alert, and a line of the summary."""
        text = f"step {step}: {text_of(finding)}"
        self._run.alert(title=f"equipoise: {finding.code}", text=text, level=LEVELS[finding.severity])
        self._run.summary[f"equipoise/findings/{finding.code}"] = text

    def close(self, status: str) -> None:
        """Finish the run if it was started here."""
        if self._own:
            self._run.finish(exit_code=0 if status == "finished" else 1)


def _project() -> str:
    return os.environ.get("WANDB_PROJECT", "equipoise")


def _new(wandb: Any, **options: Any) -> Any:
    """A new run, or one of before; offline where nobody is logged in or the server does not answer."""
    if options["dir"] is not None:
        os.makedirs(options["dir"], exist_ok=True)
    options |= {"resume": "allow", "reinit": "create_new", "settings": wandb.Settings(console="off")}
    try:
        return wandb.init(**options)
    except wandb.Error as error:
        log.warning("wandb keeps the run offline, `wandb sync` sends it: %s", str(error).splitlines()[0])
        return wandb.init(**options, mode="offline")
