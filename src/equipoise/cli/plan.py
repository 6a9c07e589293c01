"""`equipoise plan` and `equipoise transfer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli._out import print_json, print_rich, size
from equipoise.cli._read import integer, read_values, split

RUN = "Run"
OPTIMIZER = "Optimizer"
OUTPUT = "Output"


def plan(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with the setting, instead of flags.")] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            help="adamw, adam, adam_l2, sgdm, lion, muon, signsgdm, rmsprop, adam_nested or ngd.",
            rich_help_panel=OPTIMIZER,
        ),
    ] = "adamw",
    lr: Annotated[float | None, typer.Option(help="Learning rate at the peak.", rich_help_panel=OPTIMIZER)] = None,
    wd: Annotated[
        float | None, typer.Option("--wd", "--weight-decay", help="Weight decay.", rich_help_panel=OPTIMIZER)
    ] = None,
    beta1: Annotated[
        float | None,
        typer.Option(
            "--beta1", "--momentum", help="First averaging factor (0.9; muon 0.95).", rich_help_panel=OPTIMIZER
        ),
    ] = None,
    beta2: Annotated[
        float | None, typer.Option(help="Second averaging factor (0.999; lion 0.99).", rich_help_panel=OPTIMIZER)
    ] = None,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov momentum.", rich_help_panel=OPTIMIZER)] = False,
    decay: Annotated[
        str, typer.Option(help="lr (as torch), independent, corrected or cautious.", rich_help_panel=OPTIMIZER)
    ] = "lr",
    lr_max: Annotated[
        float | None, typer.Option(help="Largest lr, for corrected decay.", rich_help_panel=OPTIMIZER)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            parser=integer(),
            metavar="COUNT",
            help="Optimizer steps, for example 20000 or 2e4.",
            rich_help_panel=RUN,
        ),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="constant, cosine, linear, wsd, inverse_sqrt, exponential, polynomial, one_cycle, equal_memory, …",
            rich_help_panel=RUN,
        ),
    ] = "constant",
    schedule_option: Annotated[
        list[str] | None,
        typer.Option(
            help="More options of the schedule, for example power=3, period=1000, "
            "milestones=100,200, tail=1-sqrt; may be repeated.",
            rich_help_panel=RUN,
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(parser=integer(low=0), metavar="COUNT", help="Steps of linear warmup.", rich_help_panel=RUN),
    ] = 0,
    final: Annotated[
        float | None,
        typer.Option(help="Last lr as a share of the peak (0.1 if the schedule has an end).", rich_help_panel=RUN),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Samples per step.", rich_help_panel=RUN)
    ] = None,
    dataset_size: Annotated[
        int | None,
        typer.Option(
            parser=integer(), metavar="COUNT", help="Samples in the data, to count epochs.", rich_help_panel=RUN
        ),
    ] = None,
    tokens_per_sample: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Tokens per sample.", rich_help_panel=RUN)
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            parser=integer(),
            metavar="COUNT",
            help="Parameters of the model, for example 124e6.",
            rich_help_panel=RUN,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of a weight, for example 4096x1024. Can be repeated.", rich_help_panel=RUN),
    ] = None,
    init_rms: Annotated[
        float | None,
        typer.Option(help="RMS of the initial weights (torch's default of a linear layer).", rich_help_panel=RUN),
    ] = None,
    finetune: Annotated[
        bool | None,
        typer.Option(
            help="The weights were trained before: report their distance from the start, not equilibrium.",
            rich_help_panel=RUN,
        ),
    ] = None,
    timescale: Annotated[
        float | None,
        typer.Option(
            help="Choose the weight decay that gives this timescale in steps at peak lr.", rich_help_panel=OPTIMIZER
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Another TOML file to compare with. Can be repeated.", rich_help_panel=OUTPUT),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON (docs/plan.md has the schema).", rich_help_panel=OUTPUT)
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with sliders to this file.", rich_help_panel=OUTPUT)
    ] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the setting as TOML and exit.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show what these settings will do over the run, and what looks wrong.

    [dim]equipoise plan --optimizer adamw --lr 3e-4 --wd 0.1 --steps 20000 --schedule cosine --warmup 500[/dim]
    """
    from equipoise.planner import plan_setting, read_setting, write_setting

    flags = {
        "--lr": lr,
        "--wd": wd,
        "--steps": steps,
        "--timescale": timescale,
        "--shape": shape,
        "--init-rms": init_rms,
    }
    given = [name for name, value in flags.items() if value is not None]
    compare = compare or []
    if file is not None or (compare and not given):
        if given:
            raise ValueError(f"{', '.join(given)}: must be left out if there is a file; change the file")
        paths = [*([file] if file is not None else []), *compare]
        settings = [(_label(p, paths), read_setting(p)) for p in paths]
    else:
        setting = _from_flags(
            optimizer=optimizer, lr=lr, wd=wd, beta1=beta1, beta2=beta2, nesterov=nesterov, decay=decay, lr_max=lr_max,
            steps=steps, schedule=schedule, options=schedule_option or [], warmup=warmup, final=final,
            batch_size=batch_size, dataset_size=dataset_size, tokens_per_sample=tokens_per_sample,
            parameters=parameters, finetune=finetune, shapes=shape or [], init_rms=init_rms, timescale=timescale,
        )  # fmt: skip
        settings = [("this", setting), *((_label(p, compare), read_setting(p)) for p in compare)]
    if toml:
        if json or len(settings) > 1:
            raise ValueError("--toml: must be given without --json and --compare")
        typer.echo(write_setting(settings[0][1]), nl=False)
        return
    plans = [(name, plan_setting(s)) for name, s in settings]
    if html is not None:
        if json or len(plans) > 1:
            raise ValueError("--html: must be given without --json and --compare; two settings are pinned on the page")
        from equipoise.board import write_plan

        typer.echo(f"{size(write_plan(plans[0][1], html))}: open it in a browser")
    elif len(plans) > 1:
        print_json({name: p.to_dict() for name, p in plans}) if json else print_rich(_comparison(plans))
    elif json:
        print_json(plans[0][1].to_dict())
    else:
        print_rich(plans[0][1])


MOMENTUM = {"muon": 0.95}
"""What optimizers use where nobody says and theory says otherwise, as torch and the papers have it."""


def _from_flags(
    *, optimizer: str, lr: float | None, wd: float | None, beta1: float | None, beta2: float | None, nesterov: bool,
    steps: int | None, options: list[str], shapes: list[str], init_rms: float | None, timescale: float | None,
    **rest: Any,
) -> Any:  # fmt: skip
    from equipoise import _check
    from equipoise.planner import Setting
    from equipoise.planner.setting import WITHOUT
    from equipoise.theory import Dynamics, default_betas
    from equipoise.theory.equivalent import decay_for

    missing = [flag for flag, value in (("--lr", lr), ("--steps", steps)) if value is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given, or a TOML file (see equipoise plan --help)")
    assert lr is not None
    assert steps is not None
    name = {"sgd": "sgdm"}.get(optimizer.lower(), optimizer.lower())
    first, second = default_betas(name)
    first = MOMENTUM.get(name, first)
    for factor, value in (("beta1", beta1), ("beta2", beta2)):
        if value is not None and name in WITHOUT[factor]:
            raise ValueError(f"--{factor} = {value}: must be left out, because {name} has none")
    if rest["lr_max"] is not None and rest["decay"] != "corrected":
        raise ValueError(f"--lr-max = {rest['lr_max']}: only allowed with --decay corrected")
    betas = (first if beta1 is None else beta1, second if beta2 is None else beta2)
    if timescale is not None:
        if wd is not None:
            raise ValueError("--timescale chooses the weight decay: leave out --wd")
        time = _check.number("--timescale", timescale, low=1, open_low=True)
        _check.number("lr", lr, low=0, open_low=True)
        known = Dynamics(name, betas=betas, decay=rest["decay"], lr_max=rest["lr_max"])
        wd = decay_for(known, lr, 1 / time)
    return Setting.make(
        optimizer=name, lr=lr, weight_decay=wd or 0.0, betas=betas, nesterov=nesterov,
        tensors=tensors_of(shapes, init_rms), schedule_options=dict(_option(o) for o in options), steps=steps, **rest,
    )  # fmt: skip


def tensors_of(shapes: list[str], init_rms: float | None) -> tuple[Any, ...]:
    """The tensors that `--shape` and `--init-rms` name."""
    from equipoise.planner import Tensor

    tensors = tuple(Tensor(name=s, shape=_shape(s), init_rms=init_rms) for s in shapes)
    return tensors if tensors or init_rms is None else (Tensor(init_rms=init_rms),)


def _option(text: str) -> tuple[str, Any]:
    key, value = split("--schedule-option", text, "power=3 or milestones=100,200")
    parts = read_values(value)
    return key, parts if len(parts) > 1 or key == "milestones" else parts[0]


def _label(path: Path, among: list[Path]) -> str:
    return path.stem if sum(p.stem == path.stem for p in among) == 1 else str(path)


def transfer(
    file: Annotated[Path, typer.Argument(help="The tuned setting as a TOML file.")],
    steps: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="New number of steps, for example 8e4.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(parser=integer(), metavar="COUNT", help="New batch size.")] = None,
    dataset_size: Annotated[
        int | None,
        typer.Option(
            parser=integer(), metavar="COUNT", help="New size of the data; the number of epochs stays the same."
        ),
    ] = None,
    width_factor: Annotated[float, typer.Option(help="New width over old width.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Move a tuned setting to other steps, batch, data or width, by every rule that applies."""
    from equipoise.planner import read_setting
    from equipoise.planner import transfer as move
    from equipoise.planner.show import render_transfer

    moved = move(
        read_setting(file), steps=steps, batch_size=batch_size, dataset_size=dataset_size, width_factor=width_factor
    )
    print_json(moved.to_dict()) if json else print_rich(render_transfer(moved))


def _comparison(plans: Any) -> Any:
    from equipoise.planner.show import render_comparison

    return render_comparison(plans)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ValueError(f"--shape = {text!r}: must be whole numbers with x between them, such as 4096x1024") from None
