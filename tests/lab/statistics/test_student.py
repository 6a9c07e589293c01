"""Student's t against scipy's, which the lab does not ask for."""

import pytest

from equipoise.lab.statistics.student import quantile, within

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 19, 40])
def test_against_scipy(freedom: int) -> None:
    for t in (0.0, 0.3, 2.0, 30.0):
        assert within(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-12)
    for share in (0.5, 0.95, 0.99, 0.9999):
        assert quantile(share, freedom) == pytest.approx(stats.t.ppf((1 + share) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize(("share", "freedom", "said"), [(1.0, 2, "share = 1.0"), (0.5, 0, "freedom = 0")])
def test_wrong_input(share: float, freedom: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        quantile(share, freedom)
