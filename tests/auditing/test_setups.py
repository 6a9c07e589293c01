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
