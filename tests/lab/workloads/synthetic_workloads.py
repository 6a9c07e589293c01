"""Workloads whose losses are formulas: sweeps of them take no training."""

import math
from collections.abc import Callable

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import StoredTrial, Workload, planned
from equipoise.lab.workloads.store import Outcomes
from equipoise.lab.workloads.sweep import missing, settled

Loss = Callable[[Trial], float]

WORKLOAD = Workload(
    "synthetic", "choosing", "text", "a formula",
    Trial(steps=1000, schedule="cosine", warmup=50, data_options={"length": 8}),
    (1e-3, 3e-3, 1e-2), samples=32_000, parameters=64_000,
)  # fmt: skip


def bowl(lr: float, shrink: float) -> Loss:
    """Least at an lr and lr·wd·T; other warmups, schedules and seeds are a little worse."""

    def loss(trial: Trial) -> float:
        own = WORKLOAD.shrink(trial.lr, trial.weight_decay)
        value = 2 + math.log10(trial.lr / lr) ** 2 + 0.1 * math.log10((own + 0.01) / (shrink + 0.01)) ** 2
        return value + 0.01 * (trial.warmup != 50) + 0.01 * (trial.schedule != "cosine") + 0.001 * trial.seed

    return loss


def ended(trial: Trial, validation: float, test: float | None = None) -> StoredTrial:
    """An outcome; one of an infinite loss has diverged."""
    if math.isinf(validation):
        return StoredTrial(trial, "diverged", {})
    losses = {"validation_loss": validation, "test_loss": validation if test is None else test}
    return StoredTrial(trial, "finished", losses, seconds=10.0)


def swept(loss: Loss, workload: Workload = WORKLOAD, known: Outcomes | None = None) -> tuple[Outcomes, list[Trial]]:
    """Sweep until nothing is missing: what is known then, and what was tried, in order."""
    known, order = {} if known is None else dict(known), list[Trial]()
    for _ in range(500):
        top = settled(workload, known)
        ahead = missing(planned(workload, known, {} if top is None else {workload.name: top}), known)
        if not ahead:
            return known, order
        trial = min(ahead, key=lambda one: one[0])[1]
        assert trial.key not in known, "nothing is tried twice"
        known[trial.key] = ended(trial, loss(trial))
        order.append(trial)
    raise AssertionError("a sweep must end")
