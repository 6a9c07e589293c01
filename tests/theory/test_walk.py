"""Stationary states: theory against simulated random walks, [kosson2024]'s Table 1, and [norm-note]'s closed forms."""

import math
from typing import Any

import numpy as np
import pytest
from tests.theory.walk_cases import FULL, QUICK, Case, measure

from equipoise.theory import effective_lr, forecast, norm_over_time, stationary, steps_to_equilibrium


def check(case: Case) -> None:
    (error,) = measure(case, "exact")
    assert abs(error.norm) < case.tolerance, error
    assert abs(error.rotation) < case.tolerance, error


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_measured_equilibrium_equals_theory(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "optimizer", ["adamw", *(pytest.param(o, marks=pytest.mark.evidence) for o in ("lion", "sgdm"))]
)
def test_measured_equilibrium_equals_theory_at_slow_decay(optimizer: str) -> None:
    check(Case(optimizer, 1e-4, beta2=0.98))


@pytest.mark.evidence
@pytest.mark.parametrize("case", FULL, ids=str)
def test_measured_equilibrium_equals_theory_on_the_whole_grid(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(("C", "eta", "lam", "b1"), [(4096, 1e-3, 0.1, 0.9), (128, 1e-2, 0.01, 0.95)])
def test_small_step_is_table_1(C: int, eta: float, lam: float, b1: float) -> None:
    adamw = stationary("adamw", lr=eta, weight_decay=lam, size=C, betas=(b1, 0.999), method="small_step")
    assert adamw.norm == pytest.approx(math.sqrt(eta * C / (2 * lam)))
    assert adamw.rotation == pytest.approx(math.sqrt(2 * eta * lam * (1 - b1) / (1 + b1)))
    assert adamw.update == pytest.approx(eta * math.sqrt(C * (1 - b1) / (1 + b1)))
    g = 3.0
    sgdm = stationary("sgdm", lr=eta, weight_decay=lam, momentum=b1, grad_norm=g, method="small_step")
    assert sgdm.norm == pytest.approx((eta * g**2 / (2 * lam * (1 - b1))) ** 0.25)
    assert sgdm.rotation == pytest.approx(math.sqrt(2 * eta * lam / (1 + b1)))
    assert sgdm.update == pytest.approx(eta * math.sqrt(g**2 / (1 - b1**2)) / sgdm.norm)
    b2 = 0.99
    lion = stationary("lion", lr=eta, weight_decay=lam, size=C, betas=(b1, b2), method="small_step")
    filtered = (1 - b1) ** 2 + b1**2 * (1 - b2) / (1 + b2)
    assert lion.norm == pytest.approx(math.sqrt(eta * C / (math.pi * lam * filtered)))
    assert lion.rotation == pytest.approx(math.sqrt(math.pi * eta * lam * filtered))


def test_averages_that_are_not_given_are_the_optimizers_own() -> None:
    """Lion's are not Adam's."""
    known: dict[str, Any] = {"lr": 1e-4, "weight_decay": 1.0, "size": 256}
    for optimizer, betas in (("lion", (0.9, 0.99)), ("adamw", (0.9, 0.999))):
        own, given = stationary(optimizer, **known), stationary(optimizer, **known, betas=betas)
        assert (own.norm, own.rotation, own.update) == (given.norm, given.rotation, given.update)
        run = known | {"steps": 20, "init_norm": 1.0}
        first, second = forecast(optimizer, **run), forecast(optimizer, **run, betas=betas)
        assert np.array_equal(first.rotation, second.rotation)
    assert stationary("lion", **known).norm != stationary("lion", **known, betas=(0.9, 0.999)).norm


def test_small_step_adam_l2_solves_re_eq_84() -> None:
    C, eta, lam, g, b1 = 128, 1e-3, 1e-3, 0.7, 0.9
    s = stationary("adam_l2", lr=eta, weight_decay=lam, size=C, grad_norm=g, method="small_step")
    q = s.norm**2
    assert 4 * lam**2 * q**3 == pytest.approx(C * eta**2 * (lam**2 * q**2 + g**2), rel=1e-9)
    assert s.update**2 == pytest.approx(
        eta**2 * C * (1 - b1) / (1 + b1) * (1 - lam**2 * q**2 / (g**2 + lam**2 * q**2)), rel=1e-9
    )


@pytest.mark.parametrize("optimizer", ["sgdm", "adamw", "adam_l2", "adam_nested", "rmsprop", "ngd"])
def test_exact_tends_to_small_step(optimizer: str) -> None:
    kwargs = {"lr": 1e-5, "weight_decay": 1e-2, "size": 512, "betas": (0.9, 0.999999), "grad_norm": 1.0}
    exact, small = (stationary(optimizer, method=m, **kwargs) for m in ("exact", "small_step"))
    assert exact.norm == pytest.approx(small.norm, rel=1e-4)
    assert exact.rotation == pytest.approx(small.rotation, rel=1e-4)


def test_adam_l2_rotation_depends_on_the_gradient_and_adamw_does_not() -> None:
    def ratio(optimizer: str) -> float:
        small, large = (
            stationary(optimizer, lr=1e-3, weight_decay=1e-2, size=512, grad_norm=g).rotation for g in (0.1, 10.0)
        )
        return large / small

    assert ratio("adamw") == 1.0
    assert ratio("sgdm") == pytest.approx(1.0, abs=1e-12)
    assert ratio("adam_l2") == pytest.approx(100 ** (-1 / 3), rel=0.01)  # where λ‖w‖ ≪ ‖g‖, θ ∝ g̃^(−1/3)


def test_momentum_is_another_name_for_the_first_beta() -> None:
    a = stationary("signsgdm", lr=1e-3, weight_decay=0.1, size=512, momentum=0.95)
    b = stationary("signsgdm", lr=1e-3, weight_decay=0.1, size=512, betas=(0.95, 0.9))
    assert a == b


def test_corrected_decay_with_a_larger_peak_decays_less() -> None:
    now = stationary("adamw", lr=1e-3, weight_decay=0.1, size=512, decay="corrected", lr_max=2e-3)
    same = stationary("adamw", lr=1e-3, weight_decay=0.05, size=512)
    assert now.norm == pytest.approx(same.norm)
    assert now.rotation == pytest.approx(same.rotation)


@pytest.mark.parametrize("optimizer", ["adamw", "sgdm", "lion"])
def test_without_decay_there_is_no_equilibrium(optimizer: str) -> None:
    s = stationary(optimizer, lr=1e-3, weight_decay=0.0, size=512)
    assert s.norm == math.inf
    assert s.rotation == 0.0


def test_norm_note_closed_forms_against_the_recursion() -> None:
    eta, lam, U, w0, T = 0.05, 0.3, 1.7, 4.0, 200
    q, norms = w0**2, []
    for _ in range(T):
        q = (1 - eta * lam) ** 2 * q + eta**2 * U**2
        norms.append(math.sqrt(q))
    kwargs = {"lr": eta, "update_norm": U, "init_norm": w0}
    got = norm_over_time(np.arange(1, T + 1), weight_decay=lam, **kwargs)
    np.testing.assert_allclose(got, norms, rtol=1e-13)
    late = effective_lr(10**6, weight_decay=lam, **kwargs)
    assert float(late) == pytest.approx(math.sqrt(2 * eta * lam - (eta * lam) ** 2))
    far = 10**12
    assert float(effective_lr(far, weight_decay=0.0, **kwargs)) == pytest.approx(1 / math.sqrt(far), rel=1e-6)


@pytest.mark.parametrize(("optimizer", "fraction"), [("adamw", 0.05), ("lion", 0.3), ("sgdm", 0.05), ("adam_l2", 0.1)])
def test_steps_to_equilibrium_against_the_forecast(optimizer: str, fraction: float) -> None:
    setting: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1}
    more = {"size": 512, "betas": (0.9, 0.95), "grad_norm": 20.0}
    steps = round(steps_to_equilibrium(optimizer, fraction=fraction, size=512, grad_norm=20.0, **setting))
    end = stationary(optimizer, **setting, **more).norm
    wait = 300  # until momentum and v have forgotten that they started at zero
    f = forecast(optimizer, init_norm=1.05 * end, steps=wait + steps, **setting, **more)
    gap = f.norm**2 - end**2
    assert gap[-1] / gap[-1 - steps] == pytest.approx(fraction, rel=0.15)


def test_steps_to_equilibrium_under_a_schedule() -> None:
    lr = np.linspace(2e-3, 1e-4, 40_000)
    steps = round(steps_to_equilibrium("lion", lr=lr, weight_decay=0.1))
    assert np.prod((1 - 0.1 * lr[:steps]) ** 2) <= 0.05 < np.prod((1 - 0.1 * lr[: steps - 1]) ** 2)
    short = steps_to_equilibrium("lion", lr=lr[:100], weight_decay=0.1)
    assert short == pytest.approx(-math.log(0.05) / (-2 * np.log1p(-0.1 * lr[:100]).mean()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adamx"}, "optimizer = 'adamx': must be one of adam, adam_l2"),
        ({"lr": -1e-3}, "lr = -0.001: must be a finite number ≥ 0"),
        ({"lr": math.nan}, "lr = nan: must be a finite number ≥ 0"),
        ({"lr": "fast"}, "lr = 'fast': must be a finite number ≥ 0"),
        ({"weight_decay": -1}, "weight_decay = -1: must be a finite number ≥ 0"),
        ({"lr": 2.0, "weight_decay": 0.5}, "lr · weight_decay = 1 at step 1"),
        ({"weight_decay": 1.0, "decay": "independent"}, "weight_decay = 1 at step 1"),
        ({"betas": (1.0, 0.999)}, r"betas\[0\] = 1.0: must be a finite number in \[0, 1\)"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\] = -0.1: must be a finite number in \[0, 1\)"),
        ({"betas": 0.9}, "betas = 0.9: must be two numbers"),
        ({"momentum": 1.5}, r"momentum = 1.5: must be a finite number in \[0, 1\)"),
        ({"size": 0}, "size = 0: must be a whole number ≥ 1"),
        ({"size": None}, "size = None: must be the number of weights"),
        ({"size": 3, "shape": (2, 2)}, "disagree"),
        ({"optimizer": "muon"}, r"shape = None: must be \(rows, columns\)"),
        ({"optimizer": "muon", "shape": (8,), "size": None}, r"must be \(rows, columns\)"),
        ({"decay": "l2"}, "decay = 'l2': must be one of cautious"),
        ({"method": "fast"}, "method = 'fast': must be one of exact, small_step"),
        ({"coupled": True}, "coupled = True with optimizer = 'adamw'"),
        ({"nesterov": True}, "nesterov = True with optimizer = 'adamw'"),
        ({"optimizer": "adam_l2", "decay": "cautious"}, "decay = 'cautious' with coupled L2"),
        ({"grad_norm": 0}, "grad_norm = 0: must be a finite number > 0"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    arguments = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.1, "size": 8} | change
    with pytest.raises(ValueError, match=message):
        stationary(arguments.pop("optimizer"), **arguments)
