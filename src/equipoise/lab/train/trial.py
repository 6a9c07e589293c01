"""A trial as a frozen dataclass: everything that decides its result, to and from JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, final

from equipoise import _check

PRECISIONS = ("bfloat16", "float32")

DIGITS = 10
"""Of the numbers of a trial. The last ones of a computed lr, or of a curve, differ from processor to processor, and a
trial must be the same one wherever its sweep goes on."""


def _no_options() -> Mapping[str, Any]:
    return {}


@final
@dataclass(frozen=True)
class Trial:
    """One training run. Two trials with the same `key` give the same result.

    Numbers are kept to ten significant digits, so that computed ones are the same on every machine.

    Attributes:
        data: name of the data, `equipoise.lab.data.LOADERS`.
        model: name of the model, `equipoise.lab.models.MAKERS`.
        optimizer: name of the optimizer, `equipoise.lab.train.optimizers.MAKERS`.
        lr: learning rate at the peak.
        weight_decay: of all but gains and biases.
        steps: how many.
        batch_size: samples of a step.
        seed: of weights and batches.
        schedule: name of the learning rate's schedule, `equipoise.schedules.names.NAMES`.
        warmup: steps of linear warmup.
        final: last learning rate as a share of the peak.
        precision: "float32", or "bfloat16" for autocast.
        channels_last: memory format of images.
        limit: the trial has diverged when the loss is above this many times the first; None: only when it is not
            finite.
        evaluate: test each k-th step, and at the end; 0 at the end alone.
        data_options: what the loader takes.
        model_options: what the model's maker takes; and `start`: the fields of a trial whose trained weights to start
            from, as fine-tuning does.
        optimizer_options: what the optimizer takes besides.
        schedule_options: what the schedule takes besides.
        watch: arguments of `eq.watch`, as `every` and `neurons`; and `structure`: measure gradients by
            `equipoise.lab.train.gradient_structure` at the first and each k-th step.

    >>> trial = Trial(lr=0.1, model_options={"width": 64})
    >>> Trial.from_json(trial.to_json()) == trial
    True
    >>> trial.vary({"model_options.width": 32, "seed": 1}).model_options
    {'width': 32}
    >>> Trial(lr=0.1 + 0.2).lr
    0.3
    """

    data: str = "digits"
    model: str = "mlp"
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    steps: int = 100
    batch_size: int = 32
    seed: int = 0
    schedule: str = "constant"
    warmup: int = 0
    final: float = 0.0
    precision: str = "float32"
    channels_last: bool = False
    limit: float | None = 10.0
    evaluate: int = 0
    data_options: Mapping[str, Any] = field(default_factory=_no_options)
    model_options: Mapping[str, Any] = field(default_factory=_no_options)
    optimizer_options: Mapping[str, Any] = field(default_factory=_no_options)
    schedule_options: Mapping[str, Any] = field(default_factory=_no_options)
    watch: Mapping[str, Any] = field(default_factory=_no_options)

    def __post_init__(self) -> None:
        _check.number("lr", self.lr, low=0)
        _check.number("weight_decay", self.weight_decay, low=0)
        for name in ("steps", "batch_size"):
            _check.whole(name, getattr(self, name), low=1)
        for name in ("warmup", "evaluate"):
            _check.whole(name, getattr(self, name))
        _check.choice("precision", self.precision, PRECISIONS)
        _check.flag("channels_last", self.channels_last)
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "str" and not isinstance(value, str):
                raise ValueError(f"{f.name} = {value!r}: must be a name")
            if str(f.type).startswith("Mapping") and not isinstance(value, Mapping):
                raise ValueError(f"{f.name} = {value!r}: must be a table of options")
        # As JSON has it, so that a trial is equal to itself read back: no tuples, no numbers of numpy.
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _plain(f.name, getattr(self, f.name)))

    @cached_property
    def key(self) -> str:
        """Its identity: a hash of all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """All fields as JSON, the same text for the same trial."""
        return json.dumps(self.fields(), sort_keys=True)

    def fields(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in FIELDS}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Make a trial of its fields."""
        if not isinstance(fields, Mapping):
            raise ValueError(f"trial = {fields!r}: must be a table of fields")
        for name in fields:
            _check.choice("field", name, FIELDS)
        return cls(**fields)

    def vary(self, changes: Mapping[str, Any]) -> Trial:
        """The same with some fields changed; an option by its path, as "model_options.width"."""
        fields = self.fields()
        for path, value in changes.items():
            name, _, option = path.partition(".")
            _check.choice("field", name, fields)
            if option:
                fields[name] = {**fields[name], option: value}
            else:
                fields[name] = value
        return Trial(**fields)

    def get(self, path: str) -> Any:
        """A field, or an option by its path; None where an option is not given."""
        name, _, option = path.partition(".")
        _check.choice("field", name, FIELDS)
        value = getattr(self, name)
        return value.get(option) if option else value


FIELDS = tuple(f.name for f in dataclasses.fields(Trial))
"""Names of a trial's fields."""


def _plain(name: str, value: Any) -> Any:
    if value is None or type(value) in (str, bool, int):  # as most are, and what JSON gives back as it is
        return value
    if type(value) is float:
        return _rounded(value)
    try:
        return json.loads(json.dumps(value, default=_number), parse_float=_rounded)
    except TypeError:
        raise ValueError(f"{name} = {value!r}: must be JSON-serialisable") from None


def _rounded(number: str | float) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError
