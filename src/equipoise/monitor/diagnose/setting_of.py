"""`setting_of`: a run as the planner's `Setting`, read from what it stores. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise import schedules
from equipoise.monitor.diagnose.compare import Comparer
from equipoise.monitor.runs.recorded import META, START
from equipoise.monitor.store.layout import TensorInfo
from equipoise.monitor.store.run import Run
from equipoise.planner.setting import DTYPES, KIND_OF_ROLE, Setting, Tensor
from equipoise.schedules import Schedule

SIZES = ("batch_size", "dataset_size", "tokens_per_sample", "parameters")
"""What is taken from the metadata that a user gave."""


def setting_of(run: Run) -> Setting:
    """A run's groups, tensors, lr and weight decay of every step so far; see `Run.setting`.

    Args:
        run: the run; it may still be written.
    """
    known = Comparer(run)
    taken = known.last - known.schedules.start
    if not known.groups:
        raise ValueError(f"{run.path}: the run does not say what its optimizer was, so it has no setting")
    tensors = tuple(_tensor(known, t) for t in known.tensors.values() if t.group < len(known.groups))
    if taken < 1 or not tensors:
        raise ValueError(f"{run.path}: nothing was measured yet; train and watch at least one step")
    meta = run.meta
    start, assumed = meta.get(START) or {}, (meta.get(META) or {}).get("assumptions", ())
    wanted = start.get("steps")
    if wanted is not None and wanted > known.last:
        assumed = (*assumed, f"{known.last:,} of {wanted:,} steps were taken: lr and weight decay of the rest are open")
    if known.schedules.start > known.schedules.begin:
        assumed = (*assumed, f"only the last {taken:,} of {known.last - known.schedules.begin:,} steps are taken")
    sizes: dict[str, Any] = {name: value for name in SIZES if _positive(value := meta.get(name))}
    curves = [_curves(known, g) for g in range(len(known.groups))]
    whole = Setting(
        groups=tuple(replace(g, lr=lr, weight_decay=wd) for g, (lr, wd, _) in zip(known.groups, curves, strict=True)),
        tensors=tensors,
        steps=taken,
        schedule=curves[0][2][0],
        decay_schedule=curves[0][2][1],
        finetune=start.get("finetune"),
        frozen=start.get("frozen") or None,
        assumptions=tuple(assumed),
        **sizes,
    )
    common = curves[whole.main_group][2]
    own = tuple(None if _alike(factors, common) else factors for _, _, factors in curves)
    return replace(
        whole,
        schedule=common[0],
        decay_schedule=common[1],
        own_schedules=own if any(own) else (),
        warmup=_warmup(common[0].values(taken)),
    )


def _tensor(known: Comparer, info: TensorInfo) -> Tensor:
    size, norm = math.prod(info.shape), info.info.get("init_norm")
    dynamics, grad_norm = known.groups[info.group].dynamics, 1.0
    if dynamics.by_gradient or norm is None:
        case = known.cases([info.name]).get(info.name)
        if case is not None:
            grad_norm, norm = case.grad_norm, case.init_norm if norm is None else norm
    dtype = info.info.get("dtype")
    return Tensor(
        name=info.name,
        shape=info.shape,
        kind=KIND_OF_ROLE.get(info.role, "matrix" if len(info.shape) > 1 else "gain"),
        init_rms=None if norm is None else norm / math.sqrt(size),
        group=info.group,
        dtype=dtype if dtype in DTYPES else "float32",
        grad_norm=grad_norm,
    )


def _curves(known: Comparer, group: int) -> tuple[float, float, tuple[Schedule, Schedule]]:
    """The largest lr and weight decay of a group, and their factors at every step."""
    lr, wd = known.schedules.lr(group), known.schedules.weight_decay(group)
    tops = float(lr.max()), float(wd.max())
    factors = [schedules.from_array(x / top if top else np.ones(len(x))) for x, top in zip((lr, wd), tops, strict=True)]
    return *tops, (factors[0], factors[1])


def _alike(one: tuple[Schedule, Schedule], other: tuple[Schedule, Schedule]) -> bool:
    return all(np.allclose(a.values(), b.values(), rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


def _warmup(factor: Any) -> int:
    """The steps over which lr rises from the first on."""
    top = int(np.argmax(factor >= (1 - 1e-6) * factor.max()))
    return top + 1 if top and (np.diff(factor[: top + 1]) > 0).all() else 0


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
