"""To an MLflow tracking server, or a database in a file."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Self, final

from equipoise._extras import need
from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Place, text_of

ODD = re.compile(r"[^\w\-. :/]")
"""What MLflow does not take in a name."""

ENDED = {"finished": "FINISHED", "interrupted": "KILLED"}
"""What MLflow calls it when a run ends; any other end has "FAILED"."""

BATCH = 1000
"""The most metrics that MLflow takes at once."""


@final
class MLflow:
    """Logs metrics into a run of MLflow, and findings as its tags.

    Args:
        run_id: of a run to log into. None: the active one, or else a new one in the current experiment.
        name: of a new run.
        own: end the MLflow run at the end; a new one is always ended.
        after: steps up to this one were already sent.
        every_seconds: least seconds between two sends, after the first hundred.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        name: str | None = None,
        own: bool = False,
        after: int = 0,
        every_seconds: float = 5.0,
    ) -> None:
        mlflow = need("mlflow", "mlflow")
        self.after, self.every_seconds = after, every_seconds
        self._client = mlflow.MlflowClient()
        self._metric = need("mlflow.entities", "mlflow").Metric
        active = mlflow.active_run()
        if run_id is None and active is not None:
            run_id = active.info.run_id
        self._own = own or run_id is None
        if run_id is None:
            # Started and left again: a run of the caller's own may begin later, and must not find this one active.
            with mlflow.start_run(run_name=name) as run:
                run_id = run.info.run_id
        assert run_id is not None
        self._run_id: str = run_id
        if self._own:
            self._client.update_run(run_id, status="RUNNING")

    @classmethod
    def of(cls, place: Place) -> Self:
        """The active run, or one named after the run's directory."""
        active = need("mlflow", "mlflow").active_run()
        if active is not None:
            return cls(active.info.run_id, after=place.after(run_id=active.info.run_id))
        known = place.memory.get("run_id")
        return cls(known, own=known is not None, name=place.path.absolute().name, after=place.after())

    @property
    def memory(self) -> dict[str, Any]:
        """What the run stores, to continue here after a resume."""
        return {"run_id": self._run_id}

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """One metric for each number."""
        now = int(time.time() * 1000)
        metrics = [self._metric(ODD.sub("_", name), value, now, step) for name, value in numbers.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + BATCH])

    def finding(self, step: int, finding: Finding) -> None:
        """A tag, under its code."""
        self._client.set_tag(self._run_id, f"equipoise/{finding.code}", f"step {step}: {text_of(finding)}"[:5000])

    def close(self, status: str) -> None:
        """End the run if it was started here."""
        if self._own:
            self._client.set_terminated(self._run_id, ENDED.get(status, "FAILED"))
