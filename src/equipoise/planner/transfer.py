"""Move a tuned setting to other steps, batch, data or width, by every rule that applies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from equipoise import _check
from equipoise.planner.setting import Setting
from equipoise.theory import advice
from equipoise.theory.advice import Change, Hyperparameters, Moved


@dataclass(frozen=True)
class Transfer:
    """A change of the run, and the hyperparameters that each rule suggests.

    Attributes:
        old: the tuned hyperparameters.
        change: the change, as ratios new/old.
        moved: what each rule suggests; rules may conflict, and none is preferred.
        notes: what was assumed.
    """

    old: Hyperparameters
    change: Change
    moved: tuple[Moved, ...]
    notes: tuple[str, ...] = ()

    def setting(self, base: Setting, rule: str) -> Setting:
        """The base setting with the hyperparameters that the named rule suggests."""
        codes = {m.rule.code: m.to for m in self.moved}
        to = codes[_check.choice("rule", rule, codes)]
        group = base.groups[0].vary(lr=to.lr, weight_decay=to.weight_decay, betas=to.betas, eps=to.eps)
        return replace(base, groups=(group, *base.groups[1:]))

    def to_dict(self) -> dict[str, Any]:
        """The transfer as plain data for JSON."""
        return {
            "schema": "equipoise.transfer/1",
            "old": vars(self.old) | {"betas": list(self.old.betas)},
            "change": vars(self.change),
            "rules": [
                {
                    "code": m.rule.code,
                    "lr": m.to.lr,
                    "weight_decay": m.to.weight_decay,
                    "betas": list(m.to.betas),
                    "eps": m.to.eps,
                    "keeps": m.keeps,
                    "says": m.rule.says,
                    "source": m.rule.source,
                    "fitted": m.rule.fitted,
                }
                for m in self.moved
            ],
            "notes": list(self.notes),
        }


def transfer(
    setting: Setting,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    dataset_size: int | None = None,
    width_factor: float = 1.0,
) -> Transfer:
    """What published rules suggest when the run changes from the tuned `setting`.

    Args:
        setting: the tuned setting; the rules apply to its first group.
        steps: new number of steps; default: as many as the same data needs at the new batch size.
        batch_size: new batch size; needs the old one in the setting.
        dataset_size: new size of the data, at the same number of epochs; needs the old one in the setting.
        width_factor: new width over old width of the hidden matrices.

    >>> from equipoise.planner import Setting
    >>> s = Setting.make(lr=1e-3, weight_decay=0.1, steps=10_000, batch_size=64)
    >>> [m.rule.code for m in transfer(s, steps=20_000).moved]
    ['memory-steps', 'epoch-timescale', 'power-lines', 'complete-p']
    """
    batch = 1.0
    if batch_size is not None:
        if setting.batch_size is None:
            raise ValueError(f"batch_size = {batch_size}: must be left out, or given in the old setting too")
        batch = _check.whole("batch_size", batch_size, low=1) / setting.batch_size
    notes: list[str] = []
    if dataset_size is not None:
        if setting.dataset_size is None:
            raise ValueError(f"dataset_size = {dataset_size}: must be left out, or given in the old setting too")
        data = _check.whole("dataset_size", dataset_size, low=1) / setting.dataset_size
        if steps is not None and abs(steps / setting.steps * batch / data - 1) > 0.01:
            notes.append("steps × batch is not proportional to the data: rules that count data use the data size")
    elif steps is not None:
        data = _check.whole("steps", steps, low=1) / setting.steps * batch
    else:
        data = 1.0
        if batch != 1:
            notes.append("the data seen stays the same, so steps change with the batch")
    ratio = _check.whole("steps", steps, low=1) / setting.steps if steps is not None else data / batch
    change = Change(
        steps=ratio, batch=batch, data=data, width=_check.number("width_factor", width_factor, low=0, open_low=True)
    )
    g = setting.groups[0]
    old = Hyperparameters(g.lr, g.weight_decay, g.dynamics.betas, g.dynamics.eps)
    if g.dynamics.optimizer not in ("adam", "adamw"):
        notes.append(f"the rules were fitted on AdamW, not on {g.dynamics.optimizer}")
    return Transfer(old, change, tuple(advice.transfer(old, change)), tuple(notes))
