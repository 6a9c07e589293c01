"""One answer to what a step's decay takes: of the step itself, the plan, theory and the watch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import theory
from equipoise.optim.dynamics_of import group_state
from equipoise.theory.directions import BY_LR_MAX, DECAYS, decay_share, kept_share


@pytest.mark.parametrize("lr_max", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("decay", DECAYS)
def test_steps_plan_theory_and_watch_say_the_same(tmp_path: Path, decay: Any, lr_max: float) -> None:
    """With corrected decay also where lr is above lr_max."""
    lr, wd, w = (
        1e-3,
        1e-2 if decay in ("independent", "schedule") else 10.0,
        torch.nn.Parameter(torch.full((4, 5), 2.0).double()),
    )
    options: dict[str, Any] = {"lr_max": lr_max} if decay in BY_LR_MAX else {}
    optimizer = eq.AdamW([w], lr=lr, weight_decay=wd, decay=decay, **options)
    plan = eq.plan(None, optimizer, steps=3)
    said = {
        "plan": float(plan.setting.decay_per_step(0)[0]),
        "forecast": 1 - float(plan.tensors[0].forecast.kept[0]),  # type: ignore[union-attr]
        "theory": 1 - float(kept_share(np.array([lr]), np.array([wd]), decay=decay, **options)[0]),
        "watch": group_state(optimizer, optimizer.param_groups[0]).lost(2),
    }
    w.grad = torch.zeros_like(w)
    optimizer.step()
    taken = 1 - float(w.detach()[0, 0]) / 2
    assert said == pytest.approx(dict.fromkeys(said, taken), rel=1e-9)


def test_numbers_arrays_and_tensors() -> None:
    lr = np.array([1e-4, 1e-3, 5e-3])
    for options in ({}, {"lr_max": 1e-3}):
        for decay in DECAYS:
            by_array = decay_share(lr, np.full(3, 0.5), decay=decay, **options)
            top = options.get("lr_max", 5e-3)
            each = [decay_share(x, 0.5, decay=decay, lr_max=top) for x in lr.tolist()]
            tensors = [decay_share(torch.tensor(x).double(), 0.5, decay=decay, lr_max=top) for x in lr.tolist()]
            assert by_array == pytest.approx(each)
            assert [float(x) for x in tensors] == pytest.approx(each)


def test_a_stationary_state_above_lr_max_is_that_of_plain_decay() -> None:
    plain = theory.stationary("adamw", lr=1e-3, weight_decay=0.1, size=64)
    assert theory.stationary("adamw", lr=1e-3, weight_decay=0.1, size=64, decay="corrected", lr_max=1e-4) == plain


def test_sgd_without_momentum_takes_what_the_step_takes() -> None:
    w = torch.nn.Parameter(torch.full((4, 5), 2.0).double())
    optimizer = torch.optim.SGD([w], lr=0.1, weight_decay=0.5)
    said = float(eq.plan(None, optimizer, steps=3).setting.decay_per_step(0)[0])
    w.grad = torch.zeros_like(w)
    optimizer.step()
    assert said == pytest.approx(1 - float(w.detach()[0, 0]) / 2, rel=1e-9)
