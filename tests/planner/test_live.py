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


def warmup(optimizer: torch.optim.Optimizer, steps: int = 100) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / steps))


@pytest.mark.parametrize("start", [0, 40], ids=["new", "within the warmup"])
def test_lr_is_read_as_it_was_before_a_scheduler_changed_it(start: int) -> None:
    a, b = (torch.nn.Parameter(torch.randn(16, 16)) for _ in range(2))
    groups = [{"params": [a]}, {"params": [b], "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    untouched = eq.plan(None, optimizer, steps=20_000)
    scheduler = warmup(optimizer)
    for p in (a, b):
        p.grad = torch.zeros_like(p)
    for _ in range(start):
        optimizer.step()
        scheduler.step()
    now = [group["lr"] for group in optimizer.param_groups]
    assert now == pytest.approx([1e-3 * (start + 1) / 100, 3e-3 * (start + 1) / 100])
    plan = eq.plan(None, optimizer, steps=20_000)
    for i in (0, 1):
        assert plan.setting.lr(i).tolist() == untouched.setting.lr(i).tolist()
    said = [note for note in plan.setting.assumptions if "scheduler" in note]
    assert len(said) == 2
    for note, lr, peak in zip(said, now, (1e-3, 3e-3), strict=True):
        assert note.startswith(f"a scheduler has set lr to {lr:.3g}: initial_lr = {peak:.3g} is used; pass")
    assert [group["lr"] for group in optimizer.param_groups] == now, "reading changes nothing"
    named = eq.plan(None, optimizer, steps=20_000, schedule="cosine", warmup=500)
    assert named.setting.lr(1).max() == pytest.approx(3e-3, rel=1e-3), "a curve's peak is the lr that was given"


def test_a_scheduler_that_is_given_says_the_lr_itself() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.randn(16, 16))], lr=1e-3, weight_decay=0.1)
    plan = eq.plan(None, optimizer, steps=1000, schedule=warmup(optimizer))
    expected = [1e-3 * min(1.0, step / 100) for step in range(1, 1001)]
    assert plan.setting.lr().tolist() == pytest.approx(expected)


def test_the_peak_of_one_cycle_is_its_max_lr() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.randn(16, 16))], lr=1e-3, weight_decay=0.1)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=1000)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(4e-4)
    plan = eq.plan(None, optimizer, steps=1000)
    assert plan.setting.lr().tolist() == [1e-2] * 1000
    assert any("max_lr = 0.01" in note for note in plan.setting.assumptions)


def test_without_a_scheduler_nothing_is_said() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.randn(16, 16))], lr=1e-3, weight_decay=0.1)
    assert not [n for n in eq.plan(None, optimizer, steps=1000).setting.assumptions if "scheduler" in n]
