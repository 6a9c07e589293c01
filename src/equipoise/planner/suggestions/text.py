"""A suggested setting as Python, as TOML and as a command."""

from __future__ import annotations

from dataclasses import replace

from equipoise.planner.setting import Setting
from equipoise.planner.toml import write_setting


def code_of(s: Setting) -> str:
    """Python that makes the optimizer and its schedule for `model`."""
    g = s.groups[s.main_group]
    betas, kind = g.dynamics.betas, g.dynamics.optimizer
    own = {
        "adamw": ("torch.optim.AdamW", f", betas={betas}"),
        "lion": ("eq.Lion", f", betas={betas}"),
        "sgdm": ("torch.optim.SGD", f", momentum={betas[0]:g}"),
    }
    name, more = own.get(kind, ("eq.Muon", ""))
    if kind == "muon" and (rest := rest_of(s)) is not None:
        more = f', adam={{"lr": {rest[0]:g}, "weight_decay": {rest[1]:g}, "betas": {rest[2]}}}'
    return "\n".join((
        "import torch",
        "import equipoise as eq",
        "",
        f"optimizer = {name}(",
        f"    eq.param_groups(model), lr={g.lr:g}, weight_decay={g.weight_decay:g}{more}",
        ")",
        f"curve = {_curve(s)}",
        "scheduler = eq.schedules.Scheduler(optimizer, lr=curve, relative=True)",
    ))  # fmt: skip


def toml_of(s: Setting) -> str:
    """The main optimizer and the matrices that it takes, as a file that `equipoise plan` reads."""
    i = s.main_group
    own = [g.dynamics.optimizer == s.groups[i].dynamics.optimizer for g in s.groups]
    only = tuple(replace(t, group=0) for t in s.tensors if t.rotates and own[t.group])
    return write_setting(replace(s, groups=(replace(s.groups[i], name=""),), tensors=only, own_schedules=()))


def command_of(s: Setting) -> str:
    """The command that plans it."""
    source = s.source or {"name": "constant", "warmup": 0, "final": None}
    g = s.groups[s.main_group]
    kind, betas = g.dynamics.optimizer, g.dynamics.betas
    parts = [
        f"equipoise plan --optimizer {kind} --lr {g.lr:g} --wd {g.weight_decay:g}",
        f"--beta1 {betas[0]:g}",
        *([f"--beta2 {betas[1]:g}"] if kind in ("adamw", "lion") else []),
        *(["--nesterov"] if g.dynamics.nesterov else []),
        f"--steps {s.steps} --schedule {source['name']} --warmup {source['warmup']}",
    ]
    parts += [] if source["final"] is None else [f"--final {source['final']:g}"]
    parts += [f"--batch-size {s.batch_size}"] * (s.batch_size is not None)
    parts += [f"--dataset-size {s.dataset_size}"] * (s.dataset_size is not None)
    return " ".join(parts)


def rest_of(s: Setting) -> tuple[float, float, tuple[float, float]] | None:
    """lr, weight decay and betas of what an optimizer for matrices leaves to AdamW; None where that is nothing."""
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
