"""Constructors name every option: editors, type checkers and `help()` show them, and each is documented."""

import inspect
import re

import pytest
import torch

from equipoise import optim
from equipoise.optim.options import SHARED

CLASSES = [
    thing
    for name in optim.__all__
    if inspect.isclass(thing := getattr(optim, name)) and issubclass(thing, torch.optim.Optimizer)
]
FINAL = [cls for cls in CLASSES if cls is not optim.RuleOptimizer]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_no_option_is_hidden(cls: type) -> None:
    kinds = {p.kind for p in inspect.signature(cls).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_parameter_is_documented_in_its_place(cls: type) -> None:
    text = inspect.getdoc(cls) or ""
    assert "{" not in re.sub(r"`[^`]*`|>>>.*|\.\.\. .*", "", text), "what stands for shared text was replaced"
    args = text.split("Args:\n")[1].split("\n\n")[0]
    assert re.findall(r"^    (\w+): \S", args, re.MULTILINE) == list(inspect.signature(cls).parameters)


@pytest.mark.parametrize("cls", [c for c in FINAL if issubclass(c, optim.RuleOptimizer)], ids=lambda c: c.__name__)
def test_shared_options_have_one_default(cls: type) -> None:
    parameters = inspect.signature(cls).parameters
    own = {"weight_decay", *(["l2"] if cls is optim.RotationalAdamL2 else [])}
    for name, value in SHARED.items():
        assert name in parameters
        assert name in own or parameters[name].default == value, name


def test_the_move_has_the_same_defaults() -> None:
    for cls, move in ((optim.RotationalAdamW, optim.Rotate), (optim.HyperballAdamW, optim.Hyperball)):
        parameters = inspect.signature(cls).parameters
        assert {name: parameters[name].default for name in move.defaults} == move.defaults
