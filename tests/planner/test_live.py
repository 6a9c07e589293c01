"""A plan reads a live model as `param_groups` does."""

import pytest
import torch

import equipoise as eq


class TableNorm(torch.nn.Module):
    """A norm whose gain has three dimensions, and a table of biases: vectors by what they do, not by their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 1, 1))
        self.relative_bias = torch.nn.Parameter(torch.zeros(4, 16))


@pytest.mark.parametrize("given", [True, False], ids=["with the model", "by the groups alone"])
def test_roles_are_those_of_param_groups(given: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), TableNorm(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(eq.param_groups(model), lr=1e-3, weight_decay=0.1)
    plan = eq.plan(model if given else None, optimizer, steps=30_000, warmup=1000)
    kinds = {t.tensor.shape: t.tensor.kind for t in plan.tensors}
    assert kinds[8, 1, 1] == "gain"
    assert kinds[4, 16] == "bias"
    assert "no-decay" not in {f.code for f in plan.findings}
