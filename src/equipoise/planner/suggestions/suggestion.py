"""`eq.suggest`: what to set, each number with its reason. It costs no training, or that of a pilot.

The rule is in theory's coordinates:

- *lr*: if gradients are a random walk, a step at the peak moves the median layer by `STEPS` of its `Travel.scale`. For
  AdamW that is lr = 0.04·(RMS of the weights), whatever the betas and the length of the run. A run of fine-tuning ends
  `FINETUNED` of its initial norm from where it began.
- *weight decay*: lr·wd·T, how many times over decay alone shrinks the initial weights by a factor e, by how often the
  data is seen.
- *schedule*: a plateau and a linear fall over the last fifth; a cosine for fine-tuning.
- *betas*: a run averages over a fortieth of its steps at most, in m, and over a twentieth in v where it is a text.

`rules.STEPS` was chosen on the half "choosing" of the workloads; `suggested.json` says what all halves gave.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import _check
from equipoise.planner.checks.alike import NAMES, is_unsaid, like, spread, winner
from equipoise.planner.planning import Plan, plan, plan_setting
from equipoise.planner.setting import Setting
from equipoise.planner.suggestions.pilot import SGD_START, SHARE, Pilot, Train, fly, scaled
from equipoise.planner.suggestions.rules import (
    SCHEDULE,
    SCHEDULE_FINETUNED,
    WARMUP,
    lr_of,
    shrink_of,
    undecayed,
    weight_decay_of,
    why_betas,
    why_lr,
    why_schedule,
    with_betas,
)
from equipoise.planner.suggestions.text import code_of, command_of, rest_of, toml_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

OPTIMIZERS = ("adamw", "lion", "muon")
"""What the rule was tried with."""

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
        pilot: what short runs found, where there were any.
    """

    setting: Setting
    optimizer: str
    lr: float
    weight_decay: float
    reasons: tuple[Reason, ...]
    groups: bool = False
    pilot: Pilot | None = None

    @functools.cached_property
    def plan(self) -> Plan:
        """What the setting will do over the run."""
        return plan_setting(self.setting)

    @property
    def regret(self) -> str:
        """What such a setting cost on the workloads, in a sentence."""
        return regret_of_suggestions()

    @property
    def code(self) -> str:
        """Python that makes the optimizer and its schedule for `model`."""
        return code_of(self.setting)

    @property
    def toml(self) -> str:
        """The main optimizer and the matrices that it takes, as a file that `equipoise plan` reads."""
        return toml_of(self.setting)

    @property
    def command(self) -> str:
        """The command that plans it."""
        return command_of(self.setting)

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
            "pilot": None if self.pilot is None else self.pilot.to_dict(),
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
    pilot: Train | None = None,
    pilot_share: float = SHARE,
) -> Suggestion:
    """What to set for a run: optimizer, lr, weight decay, betas, warmup, schedule and groups.

    It costs no training, or that of a pilot.

    Args:
        model: with its initial weights: lr follows from their size.
        steps: optimizer steps of the run.
        batch_size: samples of a step.
        dataset_size: samples of the data. With `batch_size` it tells how often the data is seen, and so the decay.
        optimizer: "adamw", "lion" or "muon"; None chooses by what won on the workloads. Steps of "sgdm" follow the
            gradient's size, which no weights tell: it needs a pilot.
        tokens_per_sample: for texts.
        finetune: whether the weights are pretrained; None decides by the weights, as `eq.plan` does.
        pilot: a function `train(setting, steps)`. It makes the model anew, with the same weights each time, trains it
            with the setting (`planner.make_optimizer(model, setting)`) for so many steps, on the same batches each
            time, and returns the training loss of each step; fewer where one is not finite. It is called up to five
            times (docs/suggest.md has an example).
        pilot_share: of the run's steps, at most, for these calls: a twentieth, so a hundredth each. 0.625: an eighth.

    Returns:
        A `Suggestion`; print it to read it.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    >>> found = suggest(model, steps=1000, batch_size=64, dataset_size=50_000)
    >>> found.optimizer, found.weight_decay > 0, [r.name for r in found.reasons]
    ('muon', True, ['optimizer', 'lr', 'weight_decay', 'betas', 'schedule', 'groups', 'other weights'])
    """
    from equipoise.optim import param_groups

    if not hasattr(model, "named_modules"):
        raise ValueError(f"model = {_check.shown(model)}: must be a torch.nn.Module")
    told = {"batch_size": batch_size, "dataset_size": dataset_size, "tokens_per_sample": tokens_per_sample}
    length, groups = _check.whole("steps", steps, low=1), param_groups(model)

    def setting(name: str) -> Setting:
        def read(schedule: str) -> Setting:
            return plan(
                model, bare_optimizer(name, groups), steps=length, schedule=schedule, final=0.0,
                warmup=round(WARMUP * length), finetune=finetune, **told,
            ).setting  # fmt: skip

        found = read(SCHEDULE)
        return read(SCHEDULE_FINETUNED) if found.finetune else found

    name = "adamw" if optimizer is None else allowed(optimizer, pilot=pilot is not None)
    base = setting(name)
    why = "given"
    if optimizer is None:
        name, why = _choose(base, groups)
        base = base if name == "adamw" else setting(name)
    if pilot is None:
        return _suggest(base, why, groups=True)
    return with_pilot(base, pilot, pilot_share, why, groups=True)


def suggest_setting(setting: Setting, *, pilot: Train | None = None, pilot_share: float = SHARE) -> Suggestion:
    """What to set instead of a setting's lr and weight decay; everything else stays as it is.

    Args:
        setting: its tensors say how large the initial weights are.
        pilot: trains short runs, as `suggest` takes it.
        pilot_share: as `suggest` takes it.

    >>> from equipoise.planner import Tensor
    >>> matrix = Tensor(shape=(4096, 1024), init_rms=0.02)
    >>> suggest_setting(Setting.make(steps=2000, schedule="cosine", tensors=(matrix,))).lr
    0.00099
    """
    allowed(setting.groups[setting.main_group].dynamics.optimizer, pilot=pilot is not None)
    decaying = tuple(
        replace(g, weight_decay=g.weight_decay or 1.0 * any(t.rotates for t in setting.tensors if t.group == i))
        for i, g in enumerate(setting.groups)
    )
    base = replace(setting, groups=decaying)
    if pilot is None:
        return _suggest(base, "given", groups=False)
    return with_pilot(base, pilot, pilot_share, "given", groups=False)


def allowed(optimizer: str, *, pilot: bool = False) -> str:
    """Check the name of an optimizer.

    Args:
        optimizer: its name.
        pilot: whether short runs will tell what its gradients are like.

    Raises:
        ValueError: the rule does not hold for it; says why.
    """
    name = optimizer.lower() if isinstance(optimizer, str) else optimizer
    if pilot and name in ("sgd", "sgdm"):
        return "sgdm"
    if name in ("sgd", "sgdm", "adam_l2"):
        help = "pass a pilot to eq.suggest, or search its lr with eq.tune" if name != "adam_l2" else "use eq.tune"
        raise ValueError(
            f"optimizer = {optimizer!r}: must be one of {', '.join(OPTIMIZERS)}. What {name} does depends on the "
            f"gradient's size, which initial weights do not tell; {help}"
        )
    return _check.choice("optimizer", name, OPTIMIZERS)


@functools.cache
def regret_of_suggestions() -> str:
    """What suggested settings cost on the workloads, in a sentence for each half; empty where nobody has looked."""
    return "; ".join(json.loads(SUGGESTED.read_text(encoding="utf-8"))) if SUGGESTED.is_file() else ""


def _suggest(base: Setting, chosen: str, *, groups: bool) -> Suggestion:
    main = base.main_group
    name = base.groups[main].dynamics.optimizer
    lrs = {kind: lr_of(undecayed(base), kind) for kind in {g.dynamics.optimizer for g in base.groups}}
    if name == "sgdm":
        lrs[name] = SGD_START
    if lrs[name] is None:
        raise ValueError(
            "model: must have a weight matrix that does not begin at 0, as lr follows from the weights' initial size"
        )
    shrink, reason = shrink_of(base)
    found = []
    for i, g in enumerate(base.groups):
        lr = lrs[g.dynamics.optimizer] or lrs[name]
        assert lr is not None
        decay = 0.0 if not g.weight_decay or not shrink else weight_decay_of(base, i, lr, shrink)
        found.append(with_betas(base, g.vary(lr=lr, weight_decay=decay)))
    setting = replace(base, groups=tuple(found))
    of_main = setting.groups[main]
    return Suggestion(
        setting, name, of_main.lr, of_main.weight_decay, _reasons(setting, chosen, shrink, reason, groups), groups
    )


def with_pilot(base: Setting, train: Train, share: float, chosen: str, *, groups: bool) -> Suggestion:
    """A suggestion whose lr short runs have moved.

    Args:
        base: the run; lr and weight decay are set here.
        train: (setting, steps) → losses, as `suggest` takes it.
        share: of the run's steps, at most, for short runs.
        chosen: why this optimizer.
        groups: whether parameter groups were read from a model.
    """
    found = _suggest(base, chosen, groups=groups)
    pilot = fly(train, found.setting, share)
    setting = scaled(found.setting, pilot.factor)
    main = setting.groups[setting.main_group]
    told = {"lr": (f"{main.lr:g}", pilot.said), "weight_decay": (f"{main.weight_decay:g}", None)}
    reasons = tuple(
        replace(r, value=told[r.name][0], why=told[r.name][1] or r.why) if r.name in told else r for r in found.reasons
    )
    return replace(
        found, setting=setting, lr=main.lr, weight_decay=main.weight_decay, reasons=reasons, pilot=pilot
    )  # fmt: skip


def _reasons(s: Setting, chosen: str, shrink: float, decay: tuple[str, str], groups: bool) -> tuple[Reason, ...]:
    g = s.groups[s.main_group]
    name = g.dynamics.optimizer
    found = [
        Reason("optimizer", name, chosen, "stored trials" if chosen != "given" else ""),
        Reason("lr", f"{g.lr:g}", why_lr(s), "[theory] 2, constant from the workloads"),
        Reason("weight_decay", f"{g.weight_decay:g}", decay[0], decay[1]),
        Reason("betas", ", ".join(f"{b:g}" for b in g.dynamics.betas), *why_betas(s)),
        Reason(
            "schedule", f"{s.schedule_words}, {s.warmup} steps of warmup" if s.warmup else s.schedule_words,
            why_schedule(s), "stored trials",
        ),
    ]  # fmt: skip
    if groups:
        bare = "gains and biases do not decay"
        found.append(Reason("groups", f"{len(s.groups)} of eq.param_groups", bare, ""))
        if (rest := rest_of(s)) is not None:
            said = f"AdamW for what is no matrix: lr {rest[0]:g}, weight_decay {rest[1]:g}"
            found.append(Reason("other weights", said, "the same rule, for their own initial size", ""))
    return tuple(found)


def _choose(base: Setting, groups: Any) -> tuple[str, str]:
    """The optimizer that won on stored twins of tasks like this one, and the evidence.

    A text counts as seen once where the size of the data is unknown, as for its decay. Of other tasks nothing is known
    where data is seen often.
    """
    hidden = sum(p.numel() for g in groups if g.get("role") in ("matrix", "conv") for p in g["params"])
    every = sum(p.numel() for g in groups for p in g["params"])
    planned = plan_setting(base)
    kind = like(planned)
    if base.tokens_per_sample is None and is_unsaid(planned):
        ask = ": pass batch_size and dataset_size" if base.steps_per_epoch is None else ""
        return "adamw", f"others were tried where data is seen once or twice{ask}"
    found = winner(kind, "adamw")
    if found is None or found[0] not in OPTIMIZERS:
        return "adamw", f"no other ended lower on workloads like this one ({kind})"
    best, each = found
    if best == "muon" and hidden < 0.5 * every:
        return "adamw", "less than half of the weights are hidden matrices, which Muon is for"
    return best, (
        f"at the same number of steps, and each at its best lr, {NAMES[best]}'s test loss was {spread(each)} "
        f"of AdamW's on {len(each)} workloads like this one ({kind}); optimizer='adamw' has shorter steps"
    )


def bare_optimizer(name: str, groups: Any) -> torch.optim.Optimizer:
    """An optimizer for the groups of `eq.param_groups`, before lr, weight decay and betas are set."""
    import torch

    from equipoise.optim import Lion, Muon

    parts = [dict(g) for g in groups]
    if name == "adamw":
        return torch.optim.AdamW(parts, lr=1e-3, weight_decay=1.0)
    if name == "sgdm":
        return torch.optim.SGD(parts, lr=1e-3, weight_decay=1.0, momentum=0.9)
    if name == "lion":
        return Lion(parts, lr=1e-3, weight_decay=1.0)
    return Muon(parts, lr=1e-3, weight_decay=1.0, adam={"lr": 1e-3, "weight_decay": 1.0, "betas": (0.9, 0.95)})
