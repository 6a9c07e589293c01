"""KL divergence of Gaussians against torch's and its error messages."""

import numpy as np
import pytest
import torch

from equipoise.theory import gaussian_kl


def test_against_torch() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 4, 4))
    cp, cq = a @ a.T + np.eye(4), b @ b.T + 0.5 * np.eye(4)
    mp, mq = rng.standard_normal((2, 4))
    p, q = (
        torch.distributions.MultivariateNormal(torch.from_numpy(m), torch.from_numpy(c))
        for m, c in ((mp, cp), (mq, cq))
    )
    expected = torch.distributions.kl_divergence(p, q).item()
    assert gaussian_kl(mp, cp, mq, cq) == pytest.approx(expected, rel=1e-12)
    assert gaussian_kl(mp, cp, mp, cp) == pytest.approx(0, abs=1e-12)


def test_determinants_do_not_underflow() -> None:
    k = 400
    tiny = 1e-6 * np.eye(k)
    assert gaussian_kl(np.zeros(k), tiny, np.zeros(k), 2 * tiny) == pytest.approx(0.5 * k * (0.5 - 1 + np.log(2)))


@pytest.mark.parametrize(
    ("cov", "message"),
    [([[1.0]], "cov_p has shape"), ([[1.0, 2.0], [0.0, 1.0]], "symmetric"), ([[1.0, 2.0], [2.0, 1.0]], "positive def")],
)
def test_bad_covariances_are_named(cov: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gaussian_kl([0.0, 0.0], cov, [0.0, 0.0], np.eye(2))
