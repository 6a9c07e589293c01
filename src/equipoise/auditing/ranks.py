"""Compare what ranks trained: which parameters should be equal on all of them and are not.

Sums of each tensor go through the store of the process group, not by a collective: nothing hangs where a rank does not
audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from equipoise.auditing.record import Track
from equipoise.auditing.structure import SOURCE, few
from equipoise.finding import Finding

WAIT = timedelta(seconds=20)
"""For how long a rank waits for the sums of the others."""

_exchanges = 0
"""How often all ranks exchanged sums, which is the same number on each."""

Sums = dict[str, list[list[float]]]
"""Of each tensor: weights before the first step, its gradient, and weights after the last."""


def exchanged(tracks: Sequence[Track]) -> list[Sums] | None:
    """The sums of all ranks, this one's included; None where there is one rank, or another gave none in time.

    Args:
        tracks: of this rank.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if world < 2:
        return None
    store: Any = torch.distributed.distributed_c10d._get_default_store()
    global _exchanges
    keys = [f"equipoise/audit/{_exchanges}/{other}" for other in range(world)]
    store.set(keys[rank], json.dumps(sums_of(tracks)))
    try:
        store.wait(keys, WAIT)
        found = [json.loads(store.get(key)) for key in keys]
    except RuntimeError:
        store.delete_key(keys[rank])  # a later audit, of all ranks, shall not read it
        return None
    _exchanges += 1
    return found


def sums_of(tracks: Sequence[Track]) -> Sums:
    """What is compared of each tensor that lies whole on this rank."""
    found: Sums = {}
    for t in tracks:
        if t.after and t.grads and t.grads[0] is not None and not hasattr(t.param, "placements"):
            found[t.name] = [_sums(t.before[0]), _sums(t.grads[0]), _sums(t.after[-1])]
    return found


def _sums(x: Tensor) -> list[float]:
    x = x.double().reshape(-1)
    return [float(x.sum()), float(x.square().sum()), float(x.numel())]


def apart(ranks: Sequence[Sums]) -> Iterator[Finding]:
    """What should be equal on all ranks and is not.

    Tensors that have nothing in common, neither weights nor gradients, are each rank's own, as experts are; where that
    is so of all tensors, nothing keeps the ranks together.

    Args:
        ranks: as `exchanged` returns them.
    """
    names = [n for n in ranks[0] if all(n in r and r[n][0][2] == ranks[0][n][0][2] for r in ranks)]

    def equal(name: str, which: int) -> bool:
        return all(r[name][which] == ranks[0][name][which] for r in ranks)

    began = [n for n in names if not equal(n, 0) and equal(n, 1)]
    drifted = [n for n in names if equal(n, 0) and not equal(n, 2)]
    own = [n for n in names if not equal(n, 0) and not equal(n, 1)]
    if began:
        yield Finding(
            "audit-ranks", "error", few(began), f"{len(began)} tensors differ between {len(ranks)} ranks, although all "
            "of them get the same gradients", "equal weights", "Send the weights of rank 0 to all before training, or "
            "load the same checkpoint on all; DistributedDataParallel does so where it is made last", SOURCE,
        )  # fmt: skip
    if drifted:
        same = all(equal(n, 1) for n in drifted)
        why = "although their gradients were equal" if same else "and their gradients already differed"
        advice = (
            "See what the optimizer reads besides gradients: random numbers, groups or states that differ between ranks"
            if same else "Average their gradients: train through the wrapped model, step after the last backward"
        )  # fmt: skip
        yield Finding(
            "audit-ranks", "error", few(drifted),
            f"{len(drifted)} tensors were equal on {len(ranks)} ranks and are not after the steps, {why}",
            "equal weights", advice, SOURCE,
        )  # fmt: skip
    if own and len(own) == len(names):
        yield Finding(
            "audit-ranks", "warning", "all tensors", f"no tensor is equal on {len(ranks)} ranks, nor is its gradient",
            "at least some are shared", "Nothing, if the ranks train apart on purpose; else wrap the model", SOURCE,
        )  # fmt: skip
