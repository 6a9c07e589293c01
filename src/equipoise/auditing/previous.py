"""Compare an audit with an earlier one, as after a resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.auditing.record import Track
from equipoise.auditing.structure import SOURCE, few
from equipoise.finding import Finding

JUMP = 0.2
"""By what share lr may change between the last step of one audit and the first of the next."""

SETTINGS = ("rule", "lr", "weight_decay", "betas", "steps")


def settings_of(track: Track) -> dict[str, Any]:
    """What is kept of a tensor, to compare a later audit with it."""
    first, last = track.said[0], track.said[-1]
    taken = int(track.start.get("step") or 0) + len(track.steps)
    return {
        "rule": first.dynamics.optimizer, "lr": last.lr, "weight_decay": last.weight_decay,
        "betas": list(first.dynamics.betas), "steps": taken,
    }  # fmt: skip


def read_previous(previous: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that an earlier audit stored.

    Args:
        previous: the file that `Audit.save` wrote, or what `Audit.to_dict` returned.
    """
    data: Any = previous
    if not isinstance(previous, Mapping):
        path = Path(previous)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ValueError(f"previous = {str(path)!r}: must be a JSON file that Audit.save wrote") from None
    settings = data.get("settings") if isinstance(data, Mapping) else None
    if not isinstance(settings, Mapping):
        raise ValueError("previous: has no settings; must be what Audit.to_dict returned, or a file of Audit.save")
    return settings


def changes(tracks: list[Track], previous: Mapping[str, Any]) -> Iterator[Finding]:
    """What is not as it was in an earlier audit of the same run.

    Args:
        tracks: of this one.
        previous: as `read_previous` returns it.
    """
    kinds: dict[tuple[str, str, str, str], list[str]] = {}
    for track in tracks:
        was = previous.get(track.name)
        if was is None or not track.said:
            continue
        now, first = settings_of(track), track.said[0]
        taken = int(track.start.get("step") or 0)
        if was["rule"] != now["rule"]:
            key = ("rule", now["rule"], was["rule"], "Load the optimizer that was saved")
            kinds.setdefault(key, []).append(track.name)
        if abs(first.lr - was["lr"]) > JUMP * max(abs(was["lr"]), 1e-300):
            key = ("lr", f"{first.lr:.3g}", f"{was['lr']:.3g}", "Load the scheduler, too, and after the optimizer")
            kinds.setdefault(key, []).append(track.name)
        if abs(first.weight_decay - was["weight_decay"]) > 1e-3 * max(was["weight_decay"], first.weight_decay):
            advice = "Load what schedules weight decay, before it writes into the groups"
            key = ("weight decay", f"{first.weight_decay:.3g}", f"{was['weight_decay']:.3g}", advice)
            kinds.setdefault(key, []).append(track.name)
        if now["betas"] != list(was["betas"]):
            key = ("betas", str(now["betas"]), str(was["betas"]), "Load the optimizer's state_dict, or set them anew")
            kinds.setdefault(key, []).append(track.name)
        averages = ("exp_avg", "momentum_buffer", "exp_avg_sq", "square_avg")
        if taken < was["steps"] and not any(name in track.start for name in averages):
            key = ("state", "none", f"that of {was['steps']} steps", "Load the optimizer's state_dict")
            kinds.setdefault(key, []).append(track.name)
    for (what, now, was, advice), names in kinds.items():
        yield Finding(
            "audit-resume",
            "warning",
            few(names),
            f"{what} is {now} at the first step",
            f"{was}, as before",
            advice,
            SOURCE,
        )
