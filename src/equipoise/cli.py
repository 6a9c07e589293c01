"""The `equipoise` command: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="See, plan and control what learning rate and weight decay really do to every layer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

RUN = "Run"
OPTIMIZER = "Optimizer"
OUTPUT = "Output"


def _version(wanted: bool) -> None:
    if wanted:
        from equipoise._version import __version__

        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(
    file: Annotated[Path | None, typer.Argument(help="A setting as a TOML file, instead of flags.")] = None,
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
    steps: Annotated[float | None, typer.Option(help="Optimizer steps.", rich_help_panel=RUN)] = None,
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
            help="What a schedule takes besides, as power=3, period=1000, "
            "milestones=100,200, tail=1-sqrt; may be repeated.",
            rich_help_panel=RUN,
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Steps of linear warmup.", rich_help_panel=RUN)] = 0,
    final: Annotated[
        float | None,
        typer.Option(help="Last lr as a share of the peak (0.1 where the schedule has an end).", rich_help_panel=RUN),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step.", rich_help_panel=RUN)] = None,
    dataset_size: Annotated[
        int | None, typer.Option(help="Samples in the data, for epochs.", rich_help_panel=RUN)
    ] = None,
    tokens_per_sample: Annotated[int | None, typer.Option(help="Tokens in a sample.", rich_help_panel=RUN)] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model.", rich_help_panel=RUN)] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of a weight, as 4096x1024; may be repeated.", rich_help_panel=RUN)
    ] = None,
    init_rms: Annotated[
        float | None,
        typer.Option(help="RMS of the initial weights (torch's default of a linear layer).", rich_help_panel=RUN),
    ] = None,
    timescale: Annotated[
        float | None,
        typer.Option(
            help="Choose the weight decay that gives this timescale in steps at peak lr.", rich_help_panel=OPTIMIZER
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Another TOML file to lay beside; may be repeated.", rich_help_panel=OUTPUT),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON (docs/plan.md has the schema).", rich_help_panel=OUTPUT)
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with sliders into this file.", rich_help_panel=OUTPUT)
    ] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the setting as TOML and leave.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """What these settings will do over the run, and what is odd about them.

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
            raise ValueError(f"{', '.join(given)}: must be left out beside a file; change the file")
        paths = [*([file] if file is not None else []), *compare]
        settings = [(_label(p, paths), read_setting(p)) for p in paths]
    else:
        setting = _from_flags(
            optimizer=optimizer, lr=lr, wd=wd, beta1=beta1, beta2=beta2, nesterov=nesterov, decay=decay, lr_max=lr_max,
            steps=steps, schedule=schedule, options=schedule_option or [], warmup=warmup, final=final,
            batch_size=batch_size, dataset_size=dataset_size, tokens_per_sample=tokens_per_sample,
            parameters=parameters, shapes=shape or [], init_rms=init_rms, timescale=timescale,
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

        typer.echo(f"{_size(write_plan(plans[0][1], html))}: open it in a browser")
    elif len(plans) > 1:
        _print_json({name: p.to_dict() for name, p in plans}) if json else _print(_comparison(plans))
    elif json:
        _print_json(plans[0][1].to_dict())
    else:
        _print(plans[0][1])


BETAS = {"lion": (0.9, 0.99), "muon": (0.95, 0.999)}
"""What optimizers use where nobody says, as torch and the papers have it; the rest (0.9, 0.999)."""


def _from_flags(
    *, optimizer: str, lr: float | None, wd: float | None, beta1: float | None, beta2: float | None, nesterov: bool,
    steps: float | None, options: list[str], shapes: list[str], init_rms: float | None, timescale: float | None,
    **rest: Any,
) -> Any:  # fmt: skip
    from equipoise.planner import Setting, Tensor
    from equipoise.theory import _check

    missing = [flag for flag, value in (("--lr", lr), ("--steps", steps)) if value is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given, or a TOML file (see equipoise plan --help)")
    assert lr is not None
    name = {"sgd": "sgdm"}.get(optimizer.lower(), optimizer.lower())
    first, second = BETAS.get(name, (0.9, 0.999))
    betas = (first if beta1 is None else beta1, second if beta2 is None else beta2)
    if timescale is not None:
        if wd is not None:
            raise ValueError("--timescale chooses the weight decay: leave out --wd")
        time = _check.number("--timescale", timescale, low=1, open_low=True)
        _check.number("lr", lr, low=0, open_low=True)
        per_step = {"independent": 1.0}.get(rest["decay"], lr)
        wd = (1 - betas[0] if name == "sgdm" and rest["decay"] == "lr" else 1.0) / (time * per_step)
    tensors = [Tensor(name=s, shape=_shape(s), init_rms=init_rms) for s in shapes]
    if not tensors and init_rms is not None:
        tensors = [Tensor(init_rms=init_rms)]
    return Setting.make(
        optimizer=name, lr=lr, weight_decay=wd or 0.0, betas=betas, nesterov=nesterov, tensors=tuple(tensors),
        schedule_options=dict(_option(o) for o in options), steps=_check.whole("--steps", steps, low=1), **rest,
    )  # fmt: skip


def _option(text: str) -> tuple[str, Any]:
    """key=value, the value a number, a list of numbers or a word."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"--schedule-option = {text!r}: must be key=value, as power=3 or milestones=100,200")

    def read(word: str) -> Any:
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
        return word

    parts = [read(part) for part in value.split(",")]
    return key, parts if len(parts) > 1 or key == "milestones" else parts[0]


def _label(path: Path, among: list[Path]) -> str:
    return path.stem if sum(p.stem == path.stem for p in among) == 1 else str(path)


@app.command()
def transfer(
    file: Annotated[Path, typer.Argument(help="The tuned setting as a TOML file.")],
    steps: Annotated[int | None, typer.Option(help="New number of steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="New batch size.")] = None,
    dataset_size: Annotated[int | None, typer.Option(help="New size of the data, epochs kept.")] = None,
    width_factor: Annotated[float, typer.Option(help="New width over old width.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Move a tuned setting to other steps, batch, data or width, by every rule that speaks to it."""
    from equipoise.planner import read_setting
    from equipoise.planner import transfer as move
    from equipoise.planner.show import render_transfer

    moved = move(
        read_setting(file), steps=steps, batch_size=batch_size, dataset_size=dataset_size, width_factor=width_factor
    )
    _print_json(moved.to_dict()) if json else _print(render_transfer(moved))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Write runs as one HTML file that needs nothing else to be looked at."""
    from equipoise.board import report as write

    typer.echo(f"{_size(write(runs, output))}: open it in a browser")


@app.command()
def board(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("."),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any.")] = 5006,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Whoever reaches it can read every run.")
    ] = "127.0.0.1",
    allow: Annotated[
        list[str] | None, typer.Option(help="Another name by which browsers reach it; may be repeated.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show runs while they are written, and plans with every slider, in the browser."""
    from equipoise.board import Board, serve

    def started(running: Board) -> None:
        typer.echo(f"Runs of {directory} are at {running.url} (Ctrl-C ends it)")
        if open_browser:
            import webbrowser

            webbrowser.open(running.url)

    serve(str(directory), port=port, host=host, allow=allow or (), started=started)


def _size(path: Path) -> str:
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    to: Annotated[str, typer.Option(help="parquet or csv.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; the run's name beside it if not given.")
    ] = None,
) -> None:
    """Write all that a run measured as one table, a line a number."""
    from equipoise.monitor.export import write
    from equipoise.monitor.run import Run

    with Run.open(run) as opened:
        target, lines = write(opened, to, output)
        typer.echo(f"{lines:,} numbers in {target}")
        for finding in opened.findings:
            if finding.code == "run-damaged":
                typer.echo(f"equipoise: {finding.evidence}", err=True)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="Directory of a run, or of several, which are listed.")],
    layers: Annotated[
        str | None, typer.Option(help="Only layers with names like this, as '*attn*' or mlp. Default: all matrices.")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(help="worst, name, model, norm, rotation, relative_update, total_decay, c_err or angle."),
    ] = "worst",
    top: Annotated[int | None, typer.Option(help="How many layers. Default: as many as there is room for.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and leave, as when there is no terminal.")] = False,
) -> None:
    """What every layer of a run is doing now, the worst first; renewed every second while it runs.

    [dim]equipoise watch runs/a --layers '*attn*' --sort norm --top 10[/dim]
    """
    from equipoise.monitor.compare import Latest
    from equipoise.monitor.glance import Look
    from equipoise.monitor.run import Run
    from equipoise.monitor.screen import console, render_list, runs_in, show
    from equipoise.theory import _check

    top = None if top is None else _check.whole("--top", top, low=1)
    found = runs_in(run)
    if len(found) > 1:
        console().print(render_list(found, run))
        return
    with Run.open(found[0]) as opened:
        show(Look(opened, layers=layers, sort=sort, predict=Latest(opened)), console(), top=top, once=once)


lab_app = typer.Typer(help="Experiments that test the theory, and one's own.", no_args_is_help=True)
app.add_typer(lab_app, name="lab")


@lab_app.command("list")
def lab_list() -> None:
    """The experiments that there are."""
    from equipoise.lab.show import render_catalogue

    _print(render_catalogue())


@lab_app.command("run")
def lab_run(
    name: Annotated[str, typer.Argument(help="An experiment (see equipoise lab list), or a Python file with one.")],
    preset: Annotated[
        str, typer.Option(help="smoke (seconds), small (under half an hour on two cores) or full.")
    ] = "small",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of its trials. Default: lab/NAME-PRESET.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this file: PDF, PNG or SVG.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write NAME.svg and the marked part of NAME.md into this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an experiment, or go on with it where it was stopped; print its table and its claims.

    [dim]equipoise lab run random-walk --preset smoke --figure walk.pdf[/dim]
    """
    from equipoise.lab.conduct import OUTCOME, conduct, write_figure
    from equipoise.lab.experiments import find
    from equipoise.lab.show import bars, render_outcome

    experiment = find(name)
    folder = output or Path("lab") / f"{experiment.name}-{preset}"
    with bars() as report:
        outcome, done = conduct(experiment, folder, preset=preset, report=report)
    if figure is not None:
        write_figure(experiment, outcome, figure)
    if page is not None:
        from equipoise.lab.page import write_page

        write_page(experiment, outcome, done, page, preset=preset, command=name)
    typer.echo((folder / OUTCOME).read_text(), nl=False) if json else _print(render_outcome(outcome, done))
    for one in done:
        if one.result.status == "failed":
            typer.echo(f"equipoise: trial {one.trial.key} failed: {one.result.error.splitlines()[-1]}", err=True)


def _comparison(plans: Any) -> Any:
    from equipoise.planner.show import render_comparison

    return render_comparison(plans)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ValueError(f"--shape = {text!r}: must be whole numbers with x between them, as 4096x1024") from None


def _print(what: Any) -> None:
    from rich.console import Console

    Console().print(what)


def _print_json(data: Any) -> None:
    import json

    typer.echo(json.dumps(data, indent=2))


def main() -> None:
    """Run the command; what is wrong with the input is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except (ValueError, MemoryError) as error:
        typer.echo(f"equipoise: {error or 'not enough memory'}", err=True)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        # Wrong flags: click's own errors know their message and where to look for help.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip()  # type: ignore[attr-defined]
        if message:  # none where no command was given, and the help has been shown
            typer.echo(f"equipoise: {message} (see equipoise --help)", err=True)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
