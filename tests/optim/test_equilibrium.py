"""The signature test: optimizers on a random walk settle where `equipoise.theory` says."""

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import optim, theory
from equipoise.theory import bias_factor, eps_factor, rotation_angle

ROWS, COLUMNS = 48, 512
CASES = [
    (optim.SGDM, {"momentum": 0.9}, {"optimizer": "sgdm", "momentum": 0.9, "coupled": False}),
    (optim.SGDM, {"momentum": 0.9, "nesterov": True},
     {"optimizer": "sgdm", "momentum": 0.9, "nesterov": True, "coupled": False}),
    (optim.SGDM, {"momentum": 0.9, "l2": 0.1, "weight_decay": 0.0}, {"optimizer": "sgdm", "momentum": 0.9}),
    (optim.RMSProp, {"alpha": 0.95}, {"optimizer": "rmsprop", "betas": (0.9, 0.95)}),
    (optim.AdamW, {"betas": (0.9, 0.95)}, {"optimizer": "adamw", "betas": (0.9, 0.95)}),
    (optim.AdamW, {"betas": (0.9, 0.95), "decay": "cautious"},
     {"optimizer": "adamw", "betas": (0.9, 0.95), "decay": "cautious"}),
    (optim.AdamW, {"betas": (0.9, 0.95), "nested": True}, {"optimizer": "adam_nested", "betas": (0.9, 0.95)}),
    (optim.Adam, {"betas": (0.9, 0.95), "l2": 0.1}, {"optimizer": "adam_l2", "betas": (0.9, 0.95)}),
    (optim.SignSGDM, {"momentum": 0.9}, {"optimizer": "signsgdm", "momentum": 0.9}),
    (optim.Lion, {"betas": (0.9, 0.95)}, {"optimizer": "lion", "betas": (0.9, 0.95)}),
    (optim.NormalizedGD, {"granularity": "neuron"}, {"optimizer": "ngd"}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "predicted"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_measured_equilibrium_equals_theory(make: Any, options: dict, predicted: dict) -> None:
    lr, wd = 0.1, 0.1
    theory_options = dict(predicted)
    expected = theory.stationary(
        theory_options.pop("optimizer"), lr=lr, weight_decay=wd, size=COLUMNS, grad_norm=COLUMNS**0.5, **theory_options
    )
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, COLUMNS, generator=generator)
    w = torch.nn.Parameter(start / start.norm(dim=1, keepdim=True) * expected.norm * 0.8)
    decay: dict[str, Any] = {} if make is optim.Adam else {"weight_decay": wd}
    optimizer = make([w], lr=lr, **(decay | options))
    norms, angles = [], []
    for t in range(900):
        old = w.detach().clone()
        n = old.norm(dim=1, keepdim=True)
        g = torch.randn(ROWS, COLUMNS, generator=generator)
        g -= old * (g * old).sum(1, keepdim=True) / n**2
        w.grad = g / n
        optimizer.step()
        if t >= 500:
            change = w.detach() - old
            radial = (change * old).sum(1) / n[:, 0]
            theta = rotation_angle(norm=n[:, 0].numpy(), change_norm=change.norm(dim=1).numpy(), radial=radial.numpy())
            angles.append(theta.mean())
            norms.append(w.detach().square().sum(1).mean().item())
    tolerance = 0.05 if predicted.get("decay") == "cautious" or predicted["optimizer"] == "adam_l2" else 0.02
    assert np.sqrt(np.mean(norms)) == pytest.approx(expected.norm, rel=tolerance)
    assert np.mean(angles) == pytest.approx(expected.rotation, rel=tolerance)


@pytest.mark.parametrize(
    ("make", "name"),
    [(optim.Adam, "adam"), (optim.AdamW, "adamw"), (optim.RotationalAdamW, "adamw"),
     (optim.RotationalAdamL2, "adam_l2"), (optim.Lion, "lion"), (optim.RotationalLion, "lion")],
)  # fmt: skip
def test_betas_that_are_left_out_are_the_optimizers_own(make: Any, name: str) -> None:
    """Where nobody says, theory, plans and schedules speak of the optimizer as its class is by default."""
    own = make([torch.nn.Parameter(torch.ones(2, 2))]).defaults["betas"]
    common: dict[str, Any] = {"lr": 1e-4, "weight_decay": 1.0, "size": 64}
    assert theory.default_betas(name) == own
    assert theory.stationary(name, **common) == theory.stationary(name, betas=own, **common)
    run: dict[str, Any] = {"steps": 50, "init_norm": 1.0, **common}
    assert (theory.forecast(name, **run).norm == theory.forecast(name, betas=own, **run).norm).all()
    assert theory.Dynamics(name).betas == own
    if name != "adam_l2":
        turned = [
            eq.schedules.variant_rotation(1e-3, weight_decay=0.1, steps=1, optimizer=name, **more)
            for more in ({}, {"betas": own})
        ]
        assert turned[0] == turned[1]


def test_bias_correction_is_the_schedule_rho() -> None:
    """Adam without bias correction, with lr·ρ(t) and eps·√(1−β2^t), is Adam: optimizers that a schedule moves."""
    betas, lr, eps = (0.9, 0.99), 0.02, 1e-2
    a, b = (torch.nn.Parameter(torch.ones(6, dtype=torch.float64)) for _ in range(2))
    adam = optim.Adam([a], lr=lr, betas=betas, eps=eps)
    bare = optim.Adam([b], lr=lr, betas=betas, eps=eps, bias_correction=False)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 40):
        a.grad = torch.randn(6, generator=generator, dtype=torch.float64)
        b.grad = a.grad.clone()
        bare.param_groups[0]["lr"] = lr * float(bias_factor(t, betas))
        bare.param_groups[0]["eps"] = eps * float(eps_factor(t, betas))
        adam.step()
        bare.step()
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-14)
