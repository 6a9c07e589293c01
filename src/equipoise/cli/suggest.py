"""`equipoise suggest`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli._out import print_json, print_rich
from equipoise.cli._read import integer


def suggest(
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file with tensors and run; its lr and weight decay are replaced.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, lion or muon. Default: adamw, or the file's.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(parser=integer(), metavar="COUNT", help="Optimizer steps, for example 20000 or 2e4."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(parser=integer(), metavar="COUNT", help="Samples per step.")] = None,
    dataset_size: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Samples in the data, to count epochs.")
    ] = None,
    tokens_per_sample: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Tokens per sample, for texts.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Parameters of the model, for texts.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of a weight, for example 4096x1024. Can be repeated.")
    ] = None,
    init_rms: Annotated[
        float | None, typer.Option(help="RMS of the initial weights (torch's default of a linear layer).")
    ] = None,
    finetune: Annotated[bool | None, typer.Option(help="The weights were trained before.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/suggest.md).")] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the setting as TOML and exit.")] = False,
) -> None:
    """Say what lr and weight decay to set for a run, and why. It costs no training.

    [dim]equipoise suggest --steps 2000 --shape 1024x256 --init-rms 0.02 --batch-size 64 --dataset-size 50000[/dim]
    """
    from equipoise.cli.plan import tensors_of
    from equipoise.planner import Group, Setting, read_setting, suggest_setting
    from equipoise.planner.suggestions.rules import SCHEDULE, SCHEDULE_FINETUNED, WARMUP
    from equipoise.planner.suggestions.suggestion import allowed

    if file is not None:
        flags = {"--steps": steps, "--shape": shape, "--init-rms": init_rms}
        given = [name for name, value in flags.items() if value is not None]
        if given:
            raise ValueError(f"{', '.join(given)}: must be left out if there is a file; change the file")
        setting = read_setting(file)
        told = {
            "batch_size": batch_size, "dataset_size": dataset_size, "tokens_per_sample": tokens_per_sample,
            "parameters": parameters, "finetune": finetune,
        }  # fmt: skip
        setting = replace(setting, **{name: value for name, value in told.items() if value is not None})
        if optimizer is not None:
            setting = replace(setting, groups=(Group.make(optimizer=allowed(optimizer)),))
    else:
        if steps is None:
            raise ValueError("--steps must be given, or a TOML file (see equipoise suggest --help)")
        setting = Setting.make(
            optimizer=allowed(optimizer or "adamw"), steps=steps, warmup=round(WARMUP * steps), final=0.0,
            schedule=SCHEDULE_FINETUNED if finetune else SCHEDULE, tensors=tensors_of(shape or [], init_rms),
            batch_size=batch_size, dataset_size=dataset_size, tokens_per_sample=tokens_per_sample,
            parameters=parameters, finetune=finetune,
        )  # fmt: skip
    found = suggest_setting(setting)
    if toml:
        if json:
            raise ValueError("--toml: must be given without --json")
        typer.echo(found.toml, nl=False)
    elif json:
        print_json(found.to_dict())
    else:
        print_rich(found)
