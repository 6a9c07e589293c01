"""Sound setups raise no warning, and their lr, decay and averaging factors are inferred."""

import pytest
import torch
from tests.auditing.loops import Loop, audited, made, warned
from tests.auditing.setups import run, setups

SOME = setups()[::7]


@pytest.mark.parametrize(("optimizer", "model", "way"), SOME, ids=lambda x: str(x))
def test_no_warning(optimizer: str, model: str, way: str) -> None:
    assert warned(run(optimizer, model, way)) == []


def test_numbers_are_inferred() -> None:
    """lr and decay within 1 %, averaging factors within 0.01, against what was set."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.3, betas=(0.85, 0.97))
    row = audited(Loop(model, optimizer)).table[0]
    assert row.lr == pytest.approx(1, rel=0.01)
    assert row.weight_decay == pytest.approx(0.3, rel=0.01)
    assert row.factors == pytest.approx({"beta1": 0.85, "beta2": 0.97}, abs=0.01)


def test_numbers_are_inferred_where_the_group_says_others() -> None:
    """The step reads a group that is changed behind the audit's back."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.3, betas=(0.85, 0.97))
    own = torch.optim.AdamW.step

    class AdamW(torch.optim.AdamW):
        def step(self, closure=None):  # type: ignore[no-untyped-def]
            kept = [dict(g) for g in self.param_groups]
            for group in self.param_groups:
                group.update(lr=4e-3, weight_decay=0.1, betas=(0.7, 0.9))
            own(self, closure)
            for group, before in zip(self.param_groups, kept, strict=True):
                group.update(before)

    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.3, betas=(0.85, 0.97))
    seen = audited(Loop(model, optimizer))
    row = next(r for r in seen.table if "0.weight" in r.tensors)
    assert row.lr == pytest.approx(2, rel=0.01)
    assert row.weight_decay * 2e-3 == pytest.approx(0.1 * 4e-3, rel=0.01)
    assert row.factors == pytest.approx({"beta1": 0.7, "beta2": 0.9}, abs=0.01)
    assert {"audit-lr", "audit-betas"} <= set(warned(seen))


@pytest.mark.parametrize(
    ("optimizer", "model", "way"), [("eq.AdamW", "wide", "bf16, kept"), ("Muon and AdamW", "experts", "plain")]
)
def test_decay_is_told_where_numbers_are_rounded(optimizer: str, model: str, way: str) -> None:
    """By the float32 copy that an optimizer keeps of weights in bfloat16; by Muon's iteration in bfloat16."""
    seen = run(optimizer, model, way, 20)
    told = [row.weight_decay for row in seen.table if row.decay]
    assert told
    assert told == pytest.approx([0.1] * len(told), rel=0.01)


@pytest.mark.parametrize("wd", [1e-1, 1e-2, 1e-3])
def test_decay_is_as_exact_as_float32_lets_it_act(wd: float) -> None:
    """1 − lr·wd is rounded to a multiple of 2⁻²⁴, which is 3 % of a decay of 1e-6; its error bar says so."""
    model = made("wide")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=wd)
    rows = [row for row in audited(Loop(model, optimizer), steps=20).table if row.decay]
    assert rows
    acts = (1 - float(torch.tensor(1 - 1e-3 * wd, dtype=torch.float32))) / 1e-3
    for row in rows:
        assert row.weight_decay == pytest.approx(acts, rel=1e-3 + 1e-8 / (1e-3 * wd))
        assert abs(row.weight_decay - wd) < 4 * row.weight_decay_error
        assert 1 <= row.weight_decay_error / (2**-25 / 3**0.5 / 1e-3) < 1.5


def test_averages_in_few_bits_are_no_fault() -> None:
    """Of AdamW8bit, as bitsandbytes and torchao have it, 2 % of a step are rounding of its averages."""

    class AdamW8bit(torch.optim.AdamW):
        def step(self, closure=None):  # type: ignore[no-untyped-def]
            super().step(closure)
            for state in self.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    unit = state[name].abs().max() / 127 / 20
                    state[name].div_(unit).round_().mul_(unit)

    model = made("wide")
    optimizer = AdamW8bit(model.parameters(), lr=1e-3, weight_decay=0.1)
    seen = audited(Loop(model, optimizer), steps=20)
    assert "audit-unexplained" in [f.code for f in seen.findings]
    assert warned(seen) == []
