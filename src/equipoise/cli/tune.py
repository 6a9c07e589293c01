"""`equipoise tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli._out import print_json
from equipoise.cli._read import integer


def tune(
    script: Annotated[
        Path, typer.Argument(help="A Python file with `train(trial)`, which returns a loss, and `space`.")
    ],
    trials: Annotated[int, typer.Option(parser=integer(), metavar="COUNT", help="Trials of the study in all.")] = 20,  # type: ignore[assignment]
    store: Annotated[
        str | None, typer.Option(help="The study: NAME.db or NAME.log. Default: the script's name with .db.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the search.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a trial counts as hung.")] = None,
    on: Annotated[
        str, typer.Option(help="here: one trial at a time. ray: on the cluster at RAY_ADDRESS, or a local one.")
    ] = "here",
    jobs: Annotated[int, typer.Option(help="Trials at a time, on Ray.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search hyperparameters of a script. The same command goes on after Ctrl-C or kill -9.

    [dim]equipoise tune train.py --trials 20[/dim]
    """
    import runpy

    from equipoise.tuning import tune as search

    if not script.is_file():
        raise ValueError(f"script = {str(script)!r}: must be a Python file")
    scope = runpy.run_path(str(script), run_name="tune")
    missing = [name for name in ("train", "space") if name not in scope]
    if missing:
        raise ValueError(
            f"{script}: must have {' and '.join(missing)}: train(trial) returns a loss, space what to search"
        )
    found = search(
        scope["train"], space=scope["space"], trials=trials, store=store or script.with_suffix(".db"),
        name=script.stem, seed=seed, timeout=timeout, on=on, jobs=jobs,
    )  # fmt: skip
    best: dict[str, Any] = {"loss": found.loss, **found.best}
    said = {"best": best, "trials": len(found.trials), "stopped": found.stopped, "failed": found.failed}
    if json:
        print_json(said)
        return
    typer.echo(
        ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in best.items()
        )
    )
    typer.echo(f"{said['trials']} trials, {len(found.stopped)} stopped early, {len(found.failed)} failed")
    for number, why in found.failed.items():
        typer.echo(f"trial {number} failed: {why}")
