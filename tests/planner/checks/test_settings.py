"""What a plan says of single settings."""

from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.finding import Finding
from equipoise.planner.setting import Group, Tensor


def no_decay(lr: float, steps: int = 2000, optimizer: str = "adamw") -> Finding:
    options: dict[str, Any] = {"optimizer": optimizer} | ({"betas": (0.9, 0.95)} if optimizer == "adamw" else {})
    groups = (Group.make(lr=lr, weight_decay=0.1, **options), Group.make(lr=lr, **options))
    tensors = (Tensor("matrix", (64, 64)), Tensor("router", (8, 64), init_rms=0.02, group=1))
    plan = eq.plan(steps=steps, groups=groups, tensors=tensors)
    (one,) = [f for f in plan.findings if f.code == "no-decay"]
    return one


def test_a_norm_without_decay_runs_away_when_the_plan_says() -> None:
    """‖w_t‖² = ‖w_0‖² + t·η²·C for Adam's direction on noise, with a v that follows: doubled at 3·(rms/lr)²."""
    lr = 1e-3
    said = no_decay(lr).evidence
    step = int(said.split("by step ")[1].split()[0].replace(",", ""))
    assert "router doubles its norm" in said
    assert step == pytest.approx(3 * (0.02 / lr) ** 2, rel=0.05)
    ends = float(said.split("ends at ")[1].split()[0])
    assert ends == pytest.approx(np.sqrt(1 + 2000 * (lr / 0.02) ** 2), rel=0.03)


def test_a_norm_that_hardly_grows_is_not_said_to_run_away() -> None:
    assert "doubles" not in no_decay(1e-5).evidence
    assert "doubles" not in no_decay(1.0, optimizer="sgdm").evidence, "which depends on the gradient's size"


def test_the_beta_that_is_named_ends_the_hidden_schedule_in_the_first_sixth() -> None:
    plan = eq.plan(optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=2000)
    (one,) = [f for f in plan.findings if f.code == "bias-warmup"]
    beta = float(one.advice.split("beta2 = ")[1].split()[0])
    quiet = eq.theory.bias_factor(np.arange(1, 2001), (0.9, beta)) < 0.9
    assert np.flatnonzero(quiet)[-1] + 1 == pytest.approx(2000 / 6, rel=0.05)
