"""What the scheduler refuses when it is made, each in one line that names the argument and what is allowed."""

from typing import Any

import pytest
import torch

import equipoise.schedules as sch

T = 40


def weights() -> list[torch.Tensor]:
    return [torch.ones(4, 3, requires_grad=True), torch.ones(3, requires_grad=True)]


def adamw() -> torch.optim.Optimizer:
    a, b = weights()
    return torch.optim.AdamW([{"params": [a], "name": "matrix"}, {"params": [b], "name": "gains"}], lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"momentum": 0.9},
            "momentum is no hyperparameter of AdamW's group 0: it has lr, weight_decay, beta1, beta2, eps",
        ),
        ({"lr": -0.1}, "lr = -0.1: must be a finite number ≥ 0"),
        ({"lr": [0.1, -0.1]}, r"lr\[1\] = -0.1: must be a finite number ≥ 0"),
        ({"beta1": sch.linear(10, peak=0.9, final=1.0)}, r"beta1 of group 0 at step 10 = 1.0: must be in \[0, 1\)"),
        ({"betas": 0.9}, "betas = 0.9: must be a pair, of beta1 and beta2"),
        ({"betas": (0.9, 0.99), "beta1": 0.9}, "beta1 and betas: must give one of the two"),
        (
            {"groups": {"head": {"lr": 2}}},
            r"groups\['head'\]: must be the name of a parameter group; there are 'matrix'",
        ),
        ({"groups": {2: {"lr": 2}}}, r"groups\[2\]: must be < 2, the number of parameter groups"),
        ({"lr": 1, "groups": {1: {"lr": 2}, "gains": {"lr": 2}}}, r"groups\['gains'\]: must be given once"),
        ({"groups": {1: {"lr": 2}}}, "groups: lr = 2 is a factor: must have a shared curve for lr"),
        ({"groups": {1: {"rate": 2}}}, r"groups\[1\]: hyperparameter = 'rate': must be one of beta1, beta2"),
        ({"lr": 1, "groups": {1: {"lr": -2}}}, "factor on lr of group 1 = -2: must be a finite number ≥ 0"),
        ({"lr": 1, "decay": "cautious"}, "decay = 'cautious': must be one of corrected, independent, lr, schedule"),
        ({"decay": "independent"}, "decay = 'independent': must be 'lr' where lr has no curve"),
        ({"lr": sch.cosine_restarts(5), "decay": "corrected"}, "no known largest value"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    o = adamw()
    with pytest.raises(ValueError, match=message):
        sch.Scheduler(o, **arguments)


def test_groups_set_apart_without_decay_must_be_named() -> None:
    a, b = weights()
    o = torch.optim.AdamW([{"params": [a]}, {"params": [b], "weight_decay": 0.0}], weight_decay=0.1)
    with pytest.raises(
        ValueError, match=r'group 1 has weight_decay = 0 and others have not.*groups=\{1: \{"weight_decay"'
    ):
        sch.Scheduler(o, weight_decay=sch.linear(T))
    s = sch.Scheduler(o, weight_decay=sch.linear(T), groups={1: {"weight_decay": 0.0}})
    assert s.curves[1]["weight_decay"].top == 0
    sch.Scheduler(o, weight_decay=sch.linear(T), groups={1: {"weight_decay": 1.0}})


def test_an_eps_that_is_a_pair_is_no_eps() -> None:
    with pytest.raises(ValueError, match="eps is no hyperparameter of Adafactor's group 0: it has lr, weight_decay"):
        sch.Scheduler(torch.optim.Adafactor(weights()), eps=1e-8)


def test_something_else_than_an_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer = list: must be a torch.optim.Optimizer"):
        sch.Scheduler([], lr=1.0)  # type: ignore[arg-type]


def test_constant_decay_and_lr_zero_is_refused_before_training() -> None:
    with pytest.raises(
        ValueError, match=r"lr = 0 at step 40 with weight_decay = 0.1 of kind 'independent': must be > 0"
    ):
        sch.Scheduler(adamw(), lr=sch.cosine(T), weight_decay=0.1, decay="independent")
    sch.Scheduler(adamw(), lr=sch.cosine(T), weight_decay=sch.linear(T), decay="independent")


def test_a_group_added_later_needs_a_new_scheduler() -> None:
    o = adamw()
    s = sch.Scheduler(o, lr=sch.cosine(T))
    o.step()
    o.add_param_group({"params": [torch.zeros(1)]})
    with pytest.raises(ValueError, match="optimizer has 3 parameter groups: must have 2"):
        s.step()
