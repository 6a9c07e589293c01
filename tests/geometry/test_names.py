"""Norms by name."""

import math

import pytest

from equipoise import geometry as eg


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("spectral", eg.Operator(2, 2)),
        ("Frobenius", eg.Lp(2, dims=2)),
        ("sign", eg.Operator(1, math.inf)),
        ("ℓ1→ℓ∞", eg.Operator(1, math.inf)),
        ("l2 -> linf", eg.named("row")),
        ("l1->l2", eg.named("column")),
        ("rms→rms", eg.Operator("rms", "rms")),
        ("l1.5->linf", eg.Operator(1.5, math.inf)),
        ("l2.5", eg.Lp(2.5)),
        ("linf", eg.Lp(math.inf)),
    ],
)
def test_names(name: str, norm: eg.Norm) -> None:
    assert eg.named(name) == norm


@pytest.mark.parametrize("name", ["", "nuclear", "l0.5", "l2->", "l1->l2->l3", "2->2", "l2->lq", "l2->l1"])
def test_what_is_no_norm(name: str) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        eg.named(name)


def test_not_a_string() -> None:
    with pytest.raises(ValueError, match=r"name = 2: must be a string"):
        eg.named(2)  # pyright: ignore[reportArgumentType]
