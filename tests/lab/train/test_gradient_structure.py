"""The structure of gradients, against numpy in float64 and against what is known of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.lab.data import load
from equipoise.lab.train.gradient_structure import alignment, structure
from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial


def test_gradients_of_a_model_by_hand() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 4, 16))
    model(torch.randn(32, 2, 4, 4)).square().sum().backward()
    found = structure(model)
    assert len(found) == 12, "biases have none"
    for name in ("0.weight", "2.weight"):
        p = model.get_parameter(name)
        assert p.grad is not None
        g, w = (x.detach().double().reshape(16, -1).numpy() for x in (p.grad, p))
        s = np.linalg.svd(g, compute_uv=False)
        share = s**2 / (s**2).sum()
        assert found[f"grad_top/{name}"] == pytest.approx(s[0])
        assert found[f"grad_bottom/{name}"] == pytest.approx(s[-1], rel=1e-5)
        assert found[f"grad_stable_rank/{name}"] == pytest.approx((s**2).sum() / s[0] ** 2)
        assert found[f"grad_entropy/{name}"] == pytest.approx(-(share * np.log(share)).sum() / np.log(16))
        # By eigenvectors of the Gram matrices, two of the 16.
        left = [np.linalg.eigh(x @ x.T)[1][:, -2:] for x in (g, w)]
        right = [np.linalg.eigh(x.T @ x)[1][:, -2:] for x in (g, w)]
        for side, (a, b) in (("left", left), ("right", right)):
            expected = ((a.T @ b) ** 2).sum() / 2 / (2 / len(a))
            assert found[f"align_{side}/{name}"] == pytest.approx(expected, rel=1e-6)


def test_chance_is_one() -> None:
    torch.manual_seed(0)
    values = []
    for _ in range(400):
        a, b = (torch.linalg.qr(torch.randn(32, 16, dtype=torch.float64))[0] for _ in range(2))
        values.append(alignment(a, b))
    assert np.mean(values) == pytest.approx(1, abs=4 * float(np.std(values)) / 20)


def test_a_trial_logs_it_and_does_the_same_steps(tmp_path: Path) -> None:
    base = Trial(data="regression", data_options={"tests": 0}, model_options={"depth": 0, "bias": False}, steps=50)
    plain = train(base, tmp_path / "plain")
    looked = train(base.vary({"watch.structure": 20}), tmp_path / "looked")
    assert plain.weights == looked.weights
    with eq.Run.open(tmp_path / "looked" / "run") as run:
        assert run.series("grad_top/head.weight").steps.tolist() == [1, 20, 40]


def test_a_test_on_what_is_trained_on() -> None:
    data = load("regression", tests=0, samples=50)
    assert data.test is data.train
