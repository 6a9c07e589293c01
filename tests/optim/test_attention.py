"""Attention logits are held below a limit, by heads, whatever the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise import optim


def logits(x: Tensor, q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of attention, and the queries and keys that they are of."""
    size = len(q) // heads
    queries, keys = ((x @ w.T).unflatten(-1, (-1, size)).movedim(-2, -3) for w in (q, k))
    wide = keys.repeat_interleave(heads // keys.shape[-3], dim=-3)
    return queries @ wide.mT / size**0.5, queries, keys


def setup(
    rows_of_keys: int = 8, limit: float = 20.0, **more: Any
) -> tuple[Tensor, nn.Parameter, nn.Parameter, Any, Any]:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    q, k = (nn.Parameter(torch.randn(n, 6, dtype=torch.float64)) for n in (8, rows_of_keys))
    q.data[:2] *= 5
    q.grad, k.grad = torch.zeros_like(q), torch.zeros_like(k)
    optimizer = torch.optim.SGD([q, k], lr=0.1)
    return x, q, k, optimizer, optim.QKClip(optimizer, {"a": (q, k)}, heads=4, limit=20.0)


@pytest.mark.parametrize("rows_of_keys", [8, 4, 2])
def test_heads_above_the_limit_come_down_to_it_and_the_others_stay(rows_of_keys: int) -> None:
    """Also where heads share keys: each head's logits are its γ times what they were."""
    x, q, k, optimizer, clip = setup(rows_of_keys)
    before, queries, keys = logits(x, q, k, 4)
    clip.see("a", queries, keys)
    optimizer.step()
    after = logits(x, q, k, 4)[0]
    most = before.movedim(-3, 0).flatten(1).amax(1)
    assert most.min() < 20 < most.max()
    gamma = (20 / most.clamp_min(20)).reshape(4, 1, 1)
    torch.testing.assert_close(after, before * gamma, rtol=1e-6, atol=1e-6)
    assert clip.clipped == {"a": int((most > 20).sum())}
    old = (q.detach().clone(), k.detach().clone())
    optimizer.step()  # nothing was seen
    assert torch.equal(old[0], q)
    assert torch.equal(old[1], k)


def test_the_largest_of_several_batches_counts_and_causal_ones_see_no_later_key() -> None:
    x, q, k, optimizer, clip = setup()
    scores, queries, keys = logits(x, q, k, 4)
    seen = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    assert seen.amax() < scores.amax()
    clip.see("a", queries[:1], keys[:1], causal=True)
    clip.see("a", queries[1:], keys[1:], causal=True)
    optimizer.step()
    most = seen.movedim(-3, 0).flatten(1).amax(1)
    after = logits(x, q, k, 4)[0]
    torch.testing.assert_close(after, scores * (20 / most.clamp_min(20)).reshape(4, 1, 1), rtol=1e-6, atol=1e-6)


def test_parts_of_one_parameter_and_low_precision() -> None:
    """A view of a fused parameter, in bfloat16 with a float32 copy in the optimizer, which follows."""
    torch.manual_seed(0)
    qkv = nn.Parameter(torch.randn(12, 4).to(torch.bfloat16))
    optimizer = optim.AdamW([qkv], lr=1e-3, weight_decay=0.0)
    clip = optim.QKClip(optimizer, {"a": (qkv.detach()[:4], qkv.detach()[4:8])}, heads=2, limit=1.0)
    before = qkv.detach().float()
    for _ in range(2):
        qkv.grad = torch.zeros_like(qkv)
        clip.note("a", torch.tensor([16.0, 0.5]))
        optimizer.step()
    factor = torch.ones(12, 1)
    factor[[0, 1, 4, 5]] = 1 / 16
    assert torch.equal(qkv.detach().float(), before * factor)
    clip.note("a", torch.tensor([16.0, torch.nan]))
    clip.remove()
    optimizer.step()
    assert torch.equal(qkv.detach().float(), before * factor)


def test_what_is_refused() -> None:
    _, q, k, optimizer, clip = setup()
    with pytest.raises(ValueError, match=r"largest has the shape \(3,\): must be one number for each of 4 heads"):
        clip.note("a", torch.ones(3))
    with pytest.raises(ValueError, match="name = 'b': must be"):
        clip.note("b", torch.ones(4))
    for options in ({"heads": 3}, {"heads": 16}):
        with pytest.raises(ValueError, match="rows of queries"):
            optim.QKClip(optimizer, {"a": (q, k)}, **options)
    with pytest.raises(ValueError, match="a number of key heads that divides theirs"):
        optim.QKClip(optimizer, {"a": (q, k[:6])}, heads=4)
    with pytest.raises(ValueError, match="limit = 0"):
        optim.QKClip(optimizer, {"a": (q, k)}, heads=4, limit=0)
