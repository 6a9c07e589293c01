"""`eq.suggest`: what to set, each number with its reason. It costs no training.

The rule is in theory's coordinates:

- *lr*: if gradients are a random walk, a step at the peak moves the median layer by `STEPS` of its `Travel.scale`. For
  AdamW that is lr = 0.04·(RMS of the weights), whatever the betas and the length of the run. A run of fine-tuning ends
  `FINETUNED` of its initial norm from where it began.
- *weight decay*: lr·wd·T, how many times over decay alone shrinks the initial weights by a factor e, by how often the
  data is seen.
- *betas*: a run averages over a fortieth of its steps at most, in m, and over a twentieth in v where it is a text.

`STEPS` were chosen on the workloads of the half "choosing"; `suggested.json` has what both halves say (docs/suggest.md).
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise import _check
from equipoise.planner.checks.paying import ONCE, REPEATED, SHRINK_ONCE, SHRINK_REPEATED, learnt_by_most
from equipoise.planner.planning import Plan, plan, plan_setting
from equipoise.planner.setting import Group, Setting
from equipoise.planner.toml import write_setting
from equipoise.planner.travel import GROWS_TO
from equipoise.theory import advice

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

OPTIMIZERS = ("adamw", "lion", "muon")
"""What the rule was tried with."""

STEPS = {"adamw": 0.04, "lion": 0.04, "muon": 0.1}
"""A step at the peak, over the `Travel.scale` of the median layer: its initial norm, if it does not start small."""

FINETUNED = 0.35
"""Distance from the pretrained weights at the end, over their norm: `checks.paying.LEARNT_GOAL` of short runs."""

WARMUP = 0.05
"""Of the steps: what the workloads have."""

MANY_TOKENS = 10.0
"""Tokens per parameter from which [power-lines] sets the decay of a text: the workloads have 4 at most."""

AVERAGED = 40
"""Steps of a run over the steps that m averages, at least: a run of 200 steps lost 5 % by β1 = 0.9 (docs/log.md)."""

TEXT_BETA2 = 0.95
"""Of AdamW on texts, as the workloads have it."""

PROBE = 0.01
"""How far a run of the probe's lr goes: far enough for float64, and so little that norms stay."""

SUGGESTED = Path(__file__).with_name("suggested.json")


@dataclass(frozen=True)
class Reason:
    """A number, and why it is that.

    Attributes:
        name: what is set, as "lr".
        value: what it is set to, in words.
        why: the reason.
        source: where it is from.
    """

    name: str
    value: str
    why: str
    source: str


@dataclass(frozen=True)
class Suggestion:
    """What to set, and why.

    Attributes:
        setting: a complete setting, as `plan_setting` takes it.
        optimizer: its name.
        lr: at the peak, of the main group.
        weight_decay: of the main group.
        reasons: of each number.
        groups: whether parameter groups were read from a model.
    """

    setting: Setting
    optimizer: str
    lr: float
    weight_decay: float
    reasons: tuple[Reason, ...]
    groups: bool = False

    @functools.cached_property
    def plan(self) -> Plan:
        """What the setting will do over the run."""
        return plan_setting(self.setting)

    @property
    def regret(self) -> str:
        """What such a setting cost on the workloads, in a sentence."""
        return evidence()

    @property
    def code(self) -> str:
        """Python that makes the optimizer and its schedule for `model`."""
        i = self.setting.main_group
        betas = self.setting.groups[i].dynamics.betas
        own = {"adamw": ("torch.optim.AdamW", f", betas={betas}"), "lion": ("eq.Lion", f", betas={betas}")}
        name, more = own.get(self.optimizer, ("eq.Muon", ""))
        if self.optimizer == "muon" and (rest := _rest(self.setting)) is not None:
            more = f', adam={{"lr": {rest[0]:g}, "weight_decay": {rest[1]:g}, "betas": {rest[2]}}}'
        s = self.setting
        return "\n".join((
            "import torch",
            "import equipoise as eq",
            "",
            f"optimizer = {name}(",
            f"    eq.param_groups(model), lr={self.lr:g}, weight_decay={self.weight_decay:g}{more}",
            ")",
            f"curve = {_curve(s)}",
            "scheduler = eq.schedules.Scheduler(optimizer, lr=curve, relative=True)",
        ))  # fmt: skip

    @property
    def toml(self) -> str:
        """The main optimizer and the matrices that it takes, as a file that `equipoise plan` reads."""
        s, i = self.setting, self.setting.main_group
        own = [g.dynamics.optimizer == self.optimizer for g in s.groups]
        only = tuple(replace(t, group=0) for t in s.tensors if t.rotates and own[t.group])
        return write_setting(replace(s, groups=(replace(s.groups[i], name=""),), tensors=only, own_schedules=()))

    @property
    def command(self) -> str:
        """The command that plans it."""
        s = self.setting
        source = s.source or {"name": "constant", "warmup": 0, "final": None}
        betas = s.groups[s.main_group].dynamics.betas
        parts = [
            f"equipoise plan --optimizer {self.optimizer} --lr {self.lr:g} --wd {self.weight_decay:g}",
            f"--beta1 {betas[0]:g}",
            *([f"--beta2 {betas[1]:g}"] if self.optimizer in ("adamw", "lion") else []),
            *(["--nesterov"] if self.setting.groups[s.main_group].dynamics.nesterov else []),
            f"--steps {s.steps} --schedule {source['name']} --warmup {source['warmup']}",
        ]
        parts += [f"--final {source['final']:g}"] * (source["final"] is not None)
        parts += [f"--batch-size {s.batch_size}"] * (s.batch_size is not None)
        parts += [f"--dataset-size {s.dataset_size}"] * (s.dataset_size is not None)
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: the schema of `equipoise suggest --json`."""
        return {
            "schema": "equipoise.suggest/1",
            "optimizer": self.optimizer,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "groups": [g.to_dict() for g in self.setting.groups],
            "steps": self.setting.steps,
            "schedule": self.setting.source,
            "reasons": [vars(r) for r in self.reasons],
            "regret": self.regret,
            "code": self.code,
            "toml": self.toml,
            "command": self.command,
        }

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from equipoise.planner.show import render_suggestion

        yield render_suggestion(self)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def suggest(
    model: torch.nn.Module,
    *,
    steps: int,
    batch_size: int | None = None,
    dataset_size: int | None = None,
    optimizer: str | None = None,
    tokens_per_sample: int | None = None,
    finetune: bool | None = None,
) -> Suggestion:
    """What to set for a run: optimizer, lr, weight decay, betas, warmup, schedule and groups. It costs no training.

    Args:
        model: with its initial weights: lr follows from their size.
        steps: optimizer steps of the run.
        batch_size: samples of a step.
        dataset_size: samples of the data. With `batch_size` it tells how often the data is seen, and so the decay.
        optimizer: "adamw", "lion" or "muon"; None chooses by what won on the workloads. Steps of SGD follow the
            gradient's size, which no weights tell: it is refused.
        tokens_per_sample: for texts.
        finetune: whether the weights are pretrained; None decides by the weights, as `eq.plan` does.

    Returns:
        A `Suggestion`; print it to read it.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    >>> found = suggest(model, steps=1000, batch_size=64, dataset_size=50_000)
    >>> found.optimizer, found.weight_decay > 0, [r.name for r in found.reasons]
    ('adamw', True, ['optimizer', 'lr', 'weight_decay', 'betas', 'schedule', 'groups'])
    """
    from equipoise.optim import param_groups

    if not hasattr(model, "named_modules"):
        raise ValueError(f"model = {model!r}: must be a torch.nn.Module")
    told = {"batch_size": batch_size, "dataset_size": dataset_size, "tokens_per_sample": tokens_per_sample}
    length, groups = _check.whole("steps", steps, low=1), param_groups(model)

    def setting(name: str) -> Setting:
        return plan(
            model, _make(name, groups), steps=length, schedule="cosine", final=0.0, warmup=round(WARMUP * length),
            finetune=finetune, **told,
        ).setting  # fmt: skip

    name = "adamw" if optimizer is None else allowed(optimizer)
    base = setting(name)
    why = "given"
    if optimizer is None:
        name, why = _choose(base, groups)
        base = base if name == "adamw" else setting(name)
    return _suggest(base, why, groups=True)


def suggest_setting(setting: Setting) -> Suggestion:
    """What to set instead of a setting's lr and weight decay; everything else stays as it is.

    Args:
        setting: its tensors say how large the initial weights are.

    >>> from equipoise.planner import Tensor
    >>> matrix = Tensor(shape=(4096, 1024), init_rms=0.02)
    >>> suggest_setting(Setting.make(steps=2000, schedule="cosine", tensors=(matrix,))).lr
    0.00099
    """
    allowed(setting.groups[setting.main_group].dynamics.optimizer)
    decaying = tuple(
        replace(g, weight_decay=g.weight_decay or 1.0 * any(t.rotates for t in setting.tensors if t.group == i))
        for i, g in enumerate(setting.groups)
    )
    return _suggest(replace(setting, groups=decaying), "given", groups=False)


def allowed(optimizer: str) -> str:
    """Check the name of an optimizer.

    Raises:
        ValueError: the rule does not hold for it; says why.
    """
    name = str(optimizer).lower()
    if name in ("sgd", "sgdm", "adam_l2"):
        raise ValueError(
            f"optimizer = {optimizer!r}: must be one of {', '.join(OPTIMIZERS)}. What {name} does depends on the "
            "gradient's size, which initial weights do not tell; search its lr with eq.tune"
        )
    return _check.choice("optimizer", name, OPTIMIZERS)


@functools.cache
def evidence() -> str:
    """What suggested settings cost on the workloads, in a sentence for each half; empty where nobody has looked."""
    return "; ".join(json.loads(SUGGESTED.read_text(encoding="utf-8"))) if SUGGESTED.is_file() else ""


def _suggest(base: Setting, chosen: str, *, groups: bool) -> Suggestion:
    main = base.main_group
    probe = _undecayed(base)
    lrs = {name: _lr(probe, name) for name in {g.dynamics.optimizer for g in base.groups}}
    name = base.groups[main].dynamics.optimizer
    if lrs[name] is None:
        raise ValueError(
            "model: must have a weight matrix that does not begin at 0, as lr follows from the weights' initial size"
        )
    shrink, reason = _shrink(base)
    found = []
    for i, g in enumerate(base.groups):
        lr = lrs[g.dynamics.optimizer] or lrs[name]
        assert lr is not None
        decay = 0.0 if not g.weight_decay or not shrink else _decay(base, i, lr, shrink)
        found.append(_shortened(base, g.vary(lr=lr, weight_decay=decay)))
    setting = replace(base, groups=tuple(found))
    of_main = setting.groups[main]
    return Suggestion(
        setting, name, of_main.lr, of_main.weight_decay, _reasons(setting, chosen, shrink, reason, groups), groups
    )


def _reasons(s: Setting, chosen: str, shrink: float, decay: tuple[str, str], groups: bool) -> tuple[Reason, ...]:
    g = s.groups[s.main_group]
    name = g.dynamics.optimizer
    far = learnt_by_most(plan_setting(_undecayed(s))) or 0.0
    why = (
        f"the median layer ends {far:.2g}× its initial norm from the pretrained weights, if gradients are a random "
        f"walk. Tried with small GPTs alone: large models are often tuned with a tenth of this, so try that too"
        if s.finetune
        else f"a step at the peak moves the median layer by {100 * STEPS[name]:g} % of its initial norm (of RMS "
        f"{GROWS_TO:g}/√inputs if it starts smaller), if gradients are a random "
        f"walk{'' if s.steps <= 2000 else '. Tried in runs of 200 to 1600 steps; longer ones may want less'}"
    )
    found = [
        Reason("optimizer", name, chosen, "stored trials" if chosen != "given" else ""),
        Reason("lr", f"{g.lr:g}", why, "[theory] 2, constant from the workloads"),
        Reason("weight_decay", f"{g.weight_decay:g}", decay[0], decay[1]),
        Reason("betas", ", ".join(f"{b:g}" for b in g.dynamics.betas), *_of_betas(s)),
        Reason(
            "schedule", f"{s.schedule_words}, {s.warmup} steps of warmup" if s.warmup else s.schedule_words,
            "what the workloads have; lr is its peak", "",
        ),
    ]  # fmt: skip
    if groups:
        bare = "gains and biases do not decay"
        found.append(Reason("groups", f"{len(s.groups)} of eq.param_groups", bare, ""))
        if (rest := _rest(s)) is not None:
            said = f"AdamW for what is no matrix: lr {rest[0]:g}, weight_decay {rest[1]:g}"
            found.append(Reason("other weights", said, "the same rule, for their own initial size", ""))
    return tuple(found)


def _undecayed(s: Setting) -> Setting:
    return replace(s, groups=tuple(replace(g, weight_decay=0.0, lr=1e-3) for g in s.groups))


def _lr(base: Setting, optimizer: str) -> float | None:
    """The lr of an optimizer, to two digits; None where it has no matrix to tell it by.

    A random walk goes learnt = c·lr·√Σf², f the schedule. c is found with an lr so small that norms stay.
    """
    lr, learnt = 1e-3, None
    for _ in range(2):  # once to see how far this lr goes, once with one that goes as far as the probe should
        at = replace(base, groups=tuple(replace(g, lr=lr) for g in base.groups))
        learnt = learnt_by_most(plan_setting(at), optimizer)
        if not learnt:
            return None
        lr, last = lr * PROBE / learnt, lr
    factor = base.schedule.values(base.steps)
    goal = FINETUNED if base.finetune else STEPS[optimizer] * float(np.sqrt(np.square(factor).sum()))
    return float(f"{goal * last / learnt:.2g}") if learnt else None  # pyright: ignore[reportPossiblyUnboundVariable]


def _shortened(s: Setting, g: Group) -> Group:
    """A group of AdamW with the betas of a text, and averages that are short enough for a short run."""
    if g.dynamics.optimizer != "adamw":
        return g
    first, second = g.dynamics.betas
    if s.tokens_per_sample is not None:
        second = min(second, TEXT_BETA2)
    share = min(AVERAGED / s.steps, 0.5)
    if first > 1 - share:
        first = round(1 - share, 3)
        second = min(second, round(1 - share / 2, 3)) if s.tokens_per_sample is not None else second
    return g.vary(betas=(first, second))


def _of_betas(s: Setting) -> tuple[str, str]:
    """Reason and source of the betas."""
    if s.groups[s.main_group].dynamics.optimizer != "adamw":
        return "the optimizer's usual ones; not chosen", ""
    if s.steps < 10 * AVERAGED:
        why = f"m averages over at most 1/{AVERAGED} of the run's steps, in texts v over twice as many"
        return f"{why}: a text of 200 steps lost 5 % by 0.9, 0.95", "[mlodozeniec2025], and the workloads"
    text = s.tokens_per_sample is not None
    return "what the workloads have for texts" if text else "the optimizer's usual ones; not chosen", ""


def _decay(s: Setting, group: int, lr: float, shrink: float) -> float:
    """The weight decay of a group with which lr·wd·T is that much, to two digits."""
    at = replace(s, groups=tuple(replace(g, lr=lr) for g in s.groups))
    taken = at.dynamics(group).decay_share(lr * float(s.schedule.values(s.steps).max()), 1e-6) * 1e6
    return float(f"{shrink / (taken * s.steps):.2g}")


def _shrink(s: Setting) -> tuple[float, tuple[str, str]]:
    """lr·wd·T at peak lr, and its reason and source."""
    per_epoch, source = s.steps_per_epoch, "[theory] 9 and 10, constants from the workloads"
    if s.finetune:
        return 0.0, ("fine-tuning: decay pulls towards 0, and not to where the weights were", "stored trials")
    once = f"lr·wd·T = {SHRINK_ONCE:g}"
    if per_epoch is None:
        other = f"lr·wd·T = {SHRINK_REPEATED:g}, {SHRINK_REPEATED / SHRINK_ONCE:g} times this"
        return SHRINK_ONCE, (
            f"{once}, for data that is seen once or twice. If it is seen {REPEATED:g} times or more, {other}: pass "
            "batch_size and dataset_size",
            source,
        )
    epochs = s.steps / per_epoch
    if epochs >= REPEATED:
        return SHRINK_REPEATED, (f"lr·wd·T = {SHRINK_REPEATED:g}: the data is seen {epochs:.3g} times", source)
    if epochs > ONCE:
        share = math.log(epochs / ONCE) / math.log(REPEATED / ONCE)
        between = SHRINK_ONCE * (SHRINK_REPEATED / SHRINK_ONCE) ** share
        return between, (
            f"lr·wd·T = {between:.2g}: the data is seen {epochs:.3g} times, between what was tried",
            source,
        )
    if s.tokens_per_sample is not None and s.parameters is not None and s.batch_size is not None:
        tokens = float(s.steps * s.batch_size * s.tokens_per_sample)
        if tokens / s.parameters >= MANY_TOKENS:
            wanted = 1 / advice.power_lines_timescale(tokens, s.parameters)
            ratio = f"{tokens / s.parameters:.3g} tokens per parameter"
            return wanted, (f"lr·wd·T = {wanted:.2g} by {ratio}; the workloads have 4 at most", "[power-lines]")
    return SHRINK_ONCE, (f"{once}: the data is seen {epochs:.2g} times", source)


def _choose(base: Setting, groups: Any) -> tuple[str, str]:
    """The optimizer by what won on stored twins, and the evidence."""
    hidden = sum(p.numel() for g in groups if g.get("role") == "matrix" for p in g["params"] if p.ndim == 2)
    every = sum(p.numel() for g in groups for p in g["params"])
    if base.finetune:
        return "adamw", "fine-tuning: Muon was not tried there"
    if any(g.get("role") == "conv" for g in groups) or hidden < 0.5 * every or base.tokens_per_sample is None:
        return "adamw", "Muon was tried with transformers for texts alone (pass tokens_per_sample for a text)"
    return "muon", (
        "the same GPT on the same text ended at 2.14 after 500 steps of Muon and at 2.17 after 800 of AdamW, each at "
        "its best lr; pairs of words at 0.458 after 600 and after 800"
    )


def _make(name: str, groups: Any) -> torch.optim.Optimizer:
    import torch

    from equipoise.optim import Lion, Muon

    parts = [dict(g) for g in groups]
    if name == "adamw":
        return torch.optim.AdamW(parts, lr=1e-3, weight_decay=1.0)
    if name == "lion":
        return Lion(parts, lr=1e-3, weight_decay=1.0)
    return Muon(parts, lr=1e-3, weight_decay=1.0, adam={"lr": 1e-3, "weight_decay": 1.0, "betas": (0.9, 0.95)})


def _rest(s: Setting) -> tuple[float, float, tuple[float, float]] | None:
    """lr, weight decay and betas of what an optimizer for matrices leaves to AdamW."""
    name = s.groups[s.main_group].dynamics.optimizer
    rest = [g for g in s.groups if g.dynamics.optimizer != name]
    if not rest:
        return None
    top = max(rest, key=lambda g: g.weight_decay)
    return top.lr, top.weight_decay, top.dynamics.betas


def _curve(s: Setting) -> str:
    source = s.source or {"name": "constant"}
    more = "".join(f", {k}={v!r}" for k, v in source.items() if k != "name" and v is not None)
    return f'eq.schedules.named("{source["name"]}", steps={s.steps}{more})'
