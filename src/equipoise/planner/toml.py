"""A setting as a TOML file: read with errors that say what is wrong and where, and written so that it reads back."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from equipoise import _check
from equipoise.planner.setting import GROUP_FIELDS, Setting, Tensor
from equipoise.schedules import NAMES
from equipoise.theory import default_betas

_GROUP = GROUP_FIELDS - {"optimizer", "name"} | {"momentum"}
_TENSOR = {f.name for f in fields(Tensor)}
_RUN = {"steps", "batch_size", "dataset_size", "tokens_per_sample", "parameters", "finetune", "frozen"}
_TABLES = {"optimizer", "schedule", "run", "tensor"}


def read_setting(path: str | Path) -> Setting:
    """Read a setting from a TOML file.

        [optimizer]
        name = "adamw"
        lr = 3e-4
        weight_decay = 0.1
        betas = [0.9, 0.95]

        [schedule]
        name = "cosine"
        warmup = 500
        final = 0.1          # share of the peak

        [run]
        steps = 20000
        batch_size = 256     # these four are optional
        dataset_size = 1000000
        tokens_per_sample = 1024
        parameters = 124000000
        finetune = true      # optional: weights were trained before
        frozen = 120000000   # optional: parameters that do not train

        [[tensor]]           # optional, any number of them
        name = "mlp.up"
        shape = [4096, 1024]
        init_rms = 0.02

    Raises:
        ValueError: with the file's name, the table and the key that is wrong.
    """
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a TOML file ({error})") from None
    try:
        return _setting(data)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _setting(data: dict[str, Any]) -> Setting:
    _known("the file", data, _TABLES)
    optimizer = _table(data, "optimizer")
    schedule = _table(data, "schedule")
    run = _table(data, "run")
    _known("[run]", run, _RUN)
    if "steps" not in run:
        raise ValueError("[run] has no steps: it must say the number of optimizer steps")
    group = dict(optimizer)
    name = group.pop("name", "adamw")
    _known("[optimizer]", group, _GROUP)
    for key in ("lr", "weight_decay", "eps", "momentum"):
        if isinstance(group.get(key), bool):
            raise ValueError(f"[optimizer] {key} = {group[key]!r}: must be a number")
    if "betas" in group:
        group["betas"] = _check.betas(group["betas"])
    if "momentum" in group:
        group["betas"] = (group.pop("momentum"), group.get("betas", default_betas(str(name)))[1])
    tensors = data.get("tensor", [])
    if not isinstance(tensors, list):
        raise ValueError("tensor: must be written as [[tensor]], once for each")
    options = dict(schedule)
    if not isinstance(options.get("name", ""), str):
        raise ValueError(f"[schedule] name = {options['name']!r}: must be one of {', '.join(NAMES)}")
    curve, warmup, final = options.pop("name", None), options.pop("warmup", 0), options.pop("final", None)
    return Setting.make(
        optimizer=name,
        tensors=tuple(_tensor(i, t) for i, t in enumerate(tensors)),
        schedule=curve,
        schedule_options=options,
        warmup=warmup,
        final=final,
        **run,
        **group,
    )


def _tensor(index: int, table: Any) -> Tensor:
    where = f"[[tensor]] number {index + 1}"
    if not isinstance(table, dict):
        raise ValueError(f"{where}: must be a table")
    _known(where, table, _TENSOR)
    shape = table.get("shape")
    if not isinstance(shape, list):
        raise ValueError(f"{where}: shape = {shape!r}: must be a list of whole numbers")
    try:
        return Tensor(**{**table, "shape": tuple(shape)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} = {table!r}: must be a table, [{name}]")
    return table


def _known(where: str, table: dict[str, Any], allowed: set[str]) -> None:
    for key in table:
        if key not in allowed:
            raise ValueError(f"{where} has {key!r}: must be one of {', '.join(sorted(allowed))}")


def write_setting(setting: Setting) -> str:
    """A setting as TOML text, which `read_setting` reads back. Its schedule must have a name.

    Raises:
        ValueError: for several groups or a schedule that was not made by name.
    """
    if len(setting.groups) != 1 or setting.source is None:
        raise ValueError("setting: must have one group and a schedule made by name to be written as TOML")
    g = setting.groups[0]
    lines = ["[optimizer]", f'name = "{g.dynamics.optimizer}"']
    shown = {"lr": g.lr, "weight_decay": g.weight_decay} | g.unusual()
    lines += [f"{name} = {_value(value)}" for name, value in shown.items() if value is not None]
    lines += ["", "[schedule]", *(f"{k} = {_value(v)}" for k, v in setting.source.items() if v is not None)]
    lines += ["", "[run]"]
    lines += [f"{k} = {_value(v)}" for k in sorted(_RUN) if (v := getattr(setting, k)) is not None]
    plain_tensor = Tensor()
    for t in setting.tensors:
        if t == plain_tensor and len(setting.tensors) == 1:
            break
        lines += ["", "[[tensor]]", f"shape = {_value(list(t.shape))}"]
        for f in fields(Tensor):
            value = getattr(t, f.name)
            if f.name != "shape" and value != getattr(plain_tensor, f.name):
                lines.append(f"{f.name} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return repr(value)
