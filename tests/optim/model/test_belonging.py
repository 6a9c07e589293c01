"""What is refused of an optimizer's parameters: each message names the argument, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def plan(model: Any, optimizer: Any, path: Path) -> None:
    eq.plan(model, optimizer, steps=100)


def watch(model: Any, optimizer: Any, path: Path) -> None:
    eq.watch(model, optimizer, path / "run", quiet=True).close()


def twin(model: Any, optimizer: Any, path: Path) -> None:
    eq.rotational(model, like=optimizer)


def frozen() -> tuple[nn.Module, Any]:
    model = net()
    optimizer = adamw(model)
    return model.requires_grad_(False), optimizer


def on_meta() -> tuple[nn.Module, Any]:
    with torch.device("meta"):
        model = net()
    return model, adamw(model)


def lazy() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.LazyLinear(4))
    return model, adamw(model)


def broken() -> tuple[nn.Module, Any]:
    model = net()
    nn.init.constant_(model[0].weight, float("nan"))  # type: ignore[arg-type]
    return model, adamw(model)


def others() -> tuple[nn.Module, Any]:
    return net(), adamw(net())


CASES: list[tuple[Callable[..., None], Callable[[], tuple[Any, Any]], str]] = [
    (plan, others, "optimizer: none of its 6 parameters belong to the model; .* or model=None to plan"),
    (plan, lambda: (nn.ReLU(), adamw(net())), "none of its 6 parameters belong to the model"),
    (watch, others, "or model=None to watch it"),
    (twin, others, "like: must be an optimizer of the model's parameters, and 6 of its 6 are others"),
    (plan, frozen, r"optimizer: must have a trainable parameter; of its 6, 6 are frozen \(requires_grad=False\)"),
    (watch, frozen, "of its 6, 6 are frozen"),
    (watch, on_meta, "of its 6, 6 are on meta"),
    (twin, on_meta, "model: has parameters on meta, .* load the weights first"),
    (watch, lazy, "no shape yet; run a batch through the model first"),
    (plan, lazy, "no shape yet; run a batch through the model first"),
    (plan, broken, "0.weight has weights that are NaN, infinite .*; set them first"),
    (twin, lambda: (net(), None), "like = None: must be a torch optimizer"),
    (twin, lambda: (net(), torch.optim.AdamW), "like = <class .*>: must be a torch optimizer"),
    (twin, lambda: (adamw(net()), net()), "model = AdamW: must be a torch.nn.Module$"),
    (watch, lambda: (adamw(net()), net()), "model = AdamW: must be a torch.nn.Module, or None$"),
]


@pytest.mark.parametrize(("use", "make", "message"), CASES)
def test_what_cannot_be_used_is_refused(
    use: Callable[..., None], make: Callable[[], tuple[Any, Any]], message: str, tmp_path: Path
) -> None:
    model, optimizer = make()
    with pytest.raises(ValueError, match=message):
        use(model, optimizer, tmp_path)


def test_lazy_parameters_are_refused_without_a_model(tmp_path: Path) -> None:
    _, optimizer = lazy()
    for use in (plan, watch):
        with pytest.raises(ValueError, match="no shape yet"):
            use(None, optimizer, tmp_path)


def test_part_of_a_model_can_be_planned() -> None:
    """One parameter that is shared is enough: the others are called by group and number."""
    model, other = net(), nn.Parameter(torch.randn(5, 5))
    optimizer = torch.optim.AdamW([*model.parameters(), other], lr=1e-3)
    names = {t.tensor.name for t in eq.plan(model, optimizer, steps=100).tensors}
    assert {"0.weight", "group 0, parameter 6"} <= names


def test_empty_parameters_are_left_out() -> None:
    model = nn.ParameterList([nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.randn(4, 4))])
    planned = eq.plan(model, adamw(model), steps=100)
    assert [t.tensor.name for t in planned.tensors] == ["1"]
    assert "1 parameter is left out: frozen, complex or empty" in planned.setting.assumptions


def test_an_optimizer_where_a_name_belongs_is_named_by_its_type() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"^optimizer = AdamW: must be one of adamw, lion, muon$"):
        eq.suggest(model, steps=100, optimizer=adamw(model))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^model = AdamW: must be a torch.nn.Module$"):
        eq.suggest(adamw(model), steps=100)  # type: ignore[arg-type]
