"""Checks that experiments share: what must be true of trials for a claim about them to be tested."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise._extras import MissingExtraError
from equipoise.lab.experiments.base import Done
from equipoise.lab.experiments.shared.sweep import Setting, Turning, chosen_by, finished, stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial import Trial

ROTATES = (0.8, 1.25)
"""Measured rotation over what was asked for that still counts as it."""

LEFT = 0.2
"""What may be left of the initial norm, squared, where a layer counts as settled."""


def baseline(trial: Trial) -> dict[str, Any]:
    """What is reached on a trial's data without a network: the name of the baseline, and its test loss.

    A bigram of texts and pairs, the frequency of classes. Empty where the data cannot be loaded, or is of another kind.
    """
    return dict(_baseline(trial.data, json.dumps(dict(trial.data_options), sort_keys=True)))


@functools.cache
def _baseline(data: str, options: str) -> dict[str, Any]:
    from equipoise.lab.data import baselines, load

    try:
        loaded = load(data, **json.loads(options))
    except (OSError, ValueError, MissingExtraError):
        return {}  # trained elsewhere, where the data is
    if loaded.task in ("tokens", "pairs"):
        return {"name": "bigram", "loss": baselines.bigram(loaded)["test_loss"]}
    if loaded.task == "classes":
        return {"name": "frequency", "loss": baselines.frequency(loaded)["test_loss"]}
    return {}


def learnt(*arms: Sequence[Done]) -> Check:
    """Check that the better of some settings has a lower test loss than a model that needs no training."""
    found = [d for arm in arms for d in finished(arm)]
    known = next((d.measured["baseline"] for d in found if d.measured.get("baseline")), None)
    losses = [stat(finished(arm), "test_loss").mean for arm in arms if finished(arm)]
    name = f"test loss below the {known['name']}'s" if known else "test loss below a baseline's"
    if known is None or not losses:
        return Check(name, "a baseline", None, False)
    return Check.between(name, min(losses), high=known["loss"])


def inside(chosen: Sequence[Done], sweep: Mapping[Setting, Sequence[Done]], of: str) -> Check:
    """Check that the chosen learning rate is not at an end of those that were tried."""
    lrs = sorted({members[0].trial.lr for members in sweep.values() if members})
    lr = chosen[0].trial.lr if chosen else math.nan
    ends = f"{lrs[0]:g} and {lrs[-1]:g}" if lrs else "none"
    passed = bool(lrs) and lrs[0] < lr < lrs[-1]
    return Check(f"best lr of {of} inside the grid", f"between {ends}", lr if lr == lr else None, passed)


def as_many(reference: int, other: int, *, of: str) -> Check:
    """Check that the reference was given as many settings to choose from."""
    return Check.between(f"settings that {of} could choose from", float(reference), low=float(other))


def on_validation(done: Sequence[Done], metric: str) -> Check:
    """Check that settings were chosen by another part of the data than they are reported on."""
    by = chosen_by(done, metric)
    return Check("chosen on the validation part", "validation", by.replace("_", " "), by != metric)


def fair(
    metric: str, reference: str, arms: Mapping[str, tuple[Sequence[Done], Mapping[Setting, Sequence[Done]]]]
) -> list[Check]:  # fmt: skip
    """What a comparison of tuned settings needs: learnt, best lr inside the grid, as many settings, validation.

    Args:
        metric: that is compared.
        reference: the name of the arm that the others are held against.
        arms: by name the trials of the chosen setting, and all settings that it was chosen from.
    """
    every = [d for _, sweep in arms.values() for members in sweep.values() for d in members]
    checks = [learnt(*(chosen for chosen, _ in arms.values()))]
    checks += [inside(chosen, sweep, name) for name, (chosen, sweep) in arms.items()]
    most = max(len(sweep) for _, sweep in arms.values())
    checks.append(as_many(len(arms[reference][1]), most, of=reference))
    return [*checks, on_validation(every, metric)] if metric.startswith("test_") else checks


def rotates(done: Sequence[Done], name: str = "late rotation over theory's") -> Check:
    """Check that hidden layers turned as lr and decay ask: where gradients have vanished, nothing is settled."""
    over = [Turning.of(d).over_theory(d.trial) for d in finished(done) if "turning" in d.measured]
    return Check.between(name, float(np.mean(over)) if over else None, *ROTATES)


def relaxed(trial: Trial, share: float, *, momentum: float = 0.0) -> Check:
    """Check that initial norms are forgotten by the time that is read, at a constant lr.

    ‖w‖² relaxes by exp(−2ηλ) a step, and ‖w‖⁴ by exp(−4ηλ/(1−α)) under SGDM, whose steps grow as norms fall.

    Args:
        trial: its lr and decay.
        share: of the steps after which it is read.
        momentum: α of SGDM; 0 for optimizers whose updates have a size of their own.
    """
    rate = 2 * trial.lr * trial.weight_decay * (2 / (1 - momentum) if momentum else 1)
    left = math.exp(-rate * share * trial.steps)
    return Check.between("what is left of the initial norm, squared", left, high=LEFT)
