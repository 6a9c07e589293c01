"""The numbers of the forward pass against loops in float64."""

import math

import numpy as np
import pytest
import torch

from equipoise.monitor.forward import formulas


def one_by_one(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor, add: torch.Tensor, scale: float) -> tuple:
    """Largest logit and mean relative entropy of each head, query by query."""
    batch, heads, length, _ = q.shape
    share = heads // k.shape[1]
    largest, entropies = [], []
    for h in range(heads):
        top, relative = -math.inf, []
        for b in range(batch):
            for i in range(length):
                logits = [
                    float(q[b, h, i].double() @ k[b, h // share, j].double()) * scale + float(add[b, h, i, j])
                    for j in range(k.shape[2])
                    if seen[b, h, i, j]
                ]
                top = max([top, *logits])
                if len(logits) > 1:
                    p = np.exp(np.array(logits) - max(logits))
                    p /= p.sum()
                    relative.append(float(-(p * np.log(p)).sum() / math.log(len(logits))))
        largest.append(top)
        entropies.append(float(np.mean(relative)))
    return largest, entropies


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added", "shared keys", "scale"])
def test_attention_is_that_of_each_query(mask: str) -> None:
    g = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 4, 5, 3, generator=g), torch.randn(2, 2 if mask == "shared keys" else 4, 6, 3, generator=g)
    seen, add = torch.ones(2, 4, 5, 6, dtype=torch.bool), torch.zeros(2, 4, 5, 6)
    options: dict = {}
    if mask == "causal":
        seen, options = seen.tril(), {"causal": True}
    if mask == "bool":
        seen = (torch.rand(2, 1, 5, 6, generator=g) > 0.4).expand(2, 4, 5, 6)
        options = {"mask": seen[:, :1]}
    if mask == "added":
        add = torch.randn(5, 6, generator=g).expand(2, 4, 5, 6)
        options = {"mask": add[0, 0]}
    if mask == "scale":
        options = {"scale": 0.9}
    largest, entropy = formulas.attention_of(q, k, **options)
    expected = one_by_one(q, k, seen, add, options.get("scale", 3**-0.5))
    assert torch.allclose(largest.double(), torch.tensor(expected[0], dtype=torch.float64), rtol=1e-5)
    assert torch.allclose(entropy.double(), torch.tensor(expected[1], dtype=torch.float64), rtol=1e-5)


def test_of_long_sequences_evenly_spread_queries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(2)
    q, k = torch.randn(3, 2, 9, 4, generator=g), torch.randn(3, 2, 9, 4, generator=g)
    monkeypatch.setattr(formulas, "ENTRIES", 2 * 9 * 3)  # three queries of one sample
    largest, entropy = formulas.attention_of(q, k, causal=True)
    rows = [0, 4, 8]
    seen = torch.ones(1, 2, 9, 9, dtype=torch.bool).tril()[:, :, rows]
    assert formulas.looked_at(3, 2, 9, 9) == (1, 3)
    assert formulas.spread(q, 3).equal(q[:, :, rows])
    expected = one_by_one(q[:1, :, rows], k[:1], seen, torch.zeros(1, 2, 3, 9), 0.5)
    assert torch.allclose(largest.double(), torch.tensor(expected[0], dtype=torch.float64), rtol=1e-5)
    assert torch.allclose(entropy.double(), torch.tensor(expected[1], dtype=torch.float64), rtol=1e-5)


def test_a_query_that_sees_nothing_does_not_count() -> None:
    logits = torch.zeros(1, 1, 2, 3)
    logits[0, 0, 1] = -torch.inf
    largest, entropy = formulas.attention_logits(logits)
    assert largest.tolist() == [0.0]
    assert entropy.tolist() == [1.0]


def test_half_precision_is_measured_in_float32() -> None:
    x = torch.full((300, 300), 300.0, dtype=torch.float16)  # whose squares are beyond float16
    rms, largest = formulas.rms_and_largest(x)
    assert rms.item() == pytest.approx(300.0, rel=1e-3)
    assert largest.item() == 300.0


@pytest.mark.parametrize("units", [1, -1])
def test_dead_and_saturated_units_are_counted_one_by_one(units: int) -> None:
    g = torch.Generator().manual_seed(3)
    y = torch.randn(4, 5, 6, generator=g).tanh()
    moved = y.movedim(units, 0)
    moved[0] = 1e-6
    moved[1] = 0.999
    moved[2, 0, 0] = 1e-6  # alive elsewhere
    count = y.shape[units]
    assert formulas.dead_share(y, units).item() == pytest.approx(1 / count)
    assert formulas.saturated_share(y, units, -1.0, 1.0).item() == pytest.approx(1 / count)


def test_loads_are_shares_of_the_tokens() -> None:
    chosen = torch.randint(5, (7, 3), generator=torch.Generator().manual_seed(4))
    expected = np.bincount(chosen.numpy().ravel(), minlength=5) / 21 * 5
    assert formulas.loads(chosen, 5).tolist() == pytest.approx(expected.tolist())
