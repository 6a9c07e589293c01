"""The command as a user meets it: real processes, exit codes, one-line errors, start-up without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked

from equipoise.theory import DECAYS

PLAN = ["plan", "--optimizer", "adamw", "--lr", "1e-3", "--wd", "0.1", "--steps", "1000"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return forked.equipoise(*arguments, cwd=cwd)


def test_plan_prints_and_json_parses() -> None:
    shown = run(*PLAN)
    assert shown.returncode == 0, shown.stderr
    assert "initialisation left" in shown.stdout
    data = json.loads(run(*PLAN, "--json").stdout)
    assert data["schema"] == "equipoise.plan/1"
    assert data["init_share"] == pytest.approx(0.99990**1000, rel=1e-3)


def test_numbers_that_have_no_room_are_refused() -> None:
    for rms in ("1e-300", "5e-324", "1e155", "1e300"):
        done = run(*PLAN, "--shape", "64x64", "--init-rms", rms)
        assert done.returncode == 2
        assert done.stderr.startswith("equipoise: init_rms of 64x64 = ")
        assert len(done.stderr.splitlines()) == 1
    for lr, wd in (("1e-300", "1e-300"), ("1e300", "0.1"), ("5e-324", "5e-324"), ("1e-10", "1e300")):
        many = ["--batch-size", "1", "--dataset-size", "10", "--tokens-per-sample", "9", "--shape", "64x64"]
        done = run("plan", "--lr", lr, "--wd", wd, "--steps", "500", *many)
        assert done.returncode in (0, 2)
        assert "Traceback" not in done.stderr
        assert " inf" not in done.stdout


def test_files_compare_and_transfer(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(run(*PLAN, "--batch-size", "32", "--toml").stdout)
    (tmp_path / "b.toml").write_text(run(*PLAN[:-1], "2000", "--toml").stdout)
    assert "AdamW" in run("plan", "a.toml", cwd=tmp_path).stdout
    both = run("plan", "--compare", "a.toml", "--compare", "b.toml", cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert "2,000" in both.stdout
    assert set(json.loads(run("plan", "a.toml", "--compare", "b.toml", "--json", cwd=tmp_path).stdout)) == {"a", "b"}
    moved = run("transfer", "a.toml", "--steps", "4000", cwd=tmp_path)
    assert "memory-steps" in moved.stdout
    rules = json.loads(run("transfer", "a.toml", "--steps", "4000", "--json", cwd=tmp_path).stdout)["rules"]
    assert rules[0]["weight_decay"] == pytest.approx(0.025)


def test_suggest_from_flags_and_from_a_file(tmp_path: Path) -> None:
    flags = ["suggest", "--steps", "2e3", "--shape", "256x64", "--init-rms", "0.05", "--batch-size", "64"]
    shown = run(*flags, "--dataset-size", "128000")
    assert shown.returncode == 0, shown.stderr
    assert "equipoise plan --optimizer adamw --lr 0.004" in " ".join(shown.stdout.split())
    found = json.loads(run(*flags, "--dataset-size", "128000", "--json").stdout)
    assert found["lr"] * found["weight_decay"] * 2000 == pytest.approx(0.3, rel=0.05)
    (tmp_path / "a.toml").write_text(run(*flags, "--toml").stdout)
    assert run("plan", "a.toml", cwd=tmp_path).returncode == 0
    often = run("suggest", "a.toml", "--dataset-size", "6400", "--optimizer", "lion", "--json", cwd=tmp_path)
    again = json.loads(often.stdout)
    assert again["optimizer"] == "lion"
    assert again["lr"] * again["weight_decay"] * 2000 == pytest.approx(3, rel=0.05)


def test_timescale_chooses_the_weight_decay() -> None:
    data = json.loads(run("plan", "--lr", "1e-3", "--timescale", "500", "--steps", "3000", "--json").stdout)
    assert data["timescale_steps"] == pytest.approx(500)


def test_timescale_knows_the_kind_of_decay() -> None:
    common = ["plan", "--lr", "1e-3", "--timescale", "500", "--steps", "3000", "--json"]
    kinds = [["--decay", kind] for kind in DECAYS]
    for more in (*kinds, ["--optimizer", "sgd"], ["--optimizer", "Lion"], ["--decay", "corrected", "--lr-max", "2e-3"]):
        assert json.loads(run(*common, *more).stdout)["timescale_steps"] == pytest.approx(500), more


def test_schedules_with_options_of_their_own() -> None:
    done = run(*PLAN[:-1], "1e3", "--schedule", "step", "--schedule-option", "milestones=400,800", "--json")
    assert json.loads(done.stdout)["lr"]["last"] == pytest.approx(1e-5)
    done = run(*PLAN, "--schedule", "cosine_restarts", "--schedule-option", "period=100", "--json")
    assert done.returncode == 0, done.stderr


def test_runs_are_listed_filtered_sorted_and_tagged(tmp_path: Path) -> None:
    from equipoise.monitor import Column, Layout, RunWriter

    layout = Layout((Column("loss"), Column("accuracy")), kind="log")
    for i, name in enumerate(("one", "two", "three")):
        with RunWriter(tmp_path / "runs" / name, meta={"seed": i}, layouts=[layout]) as writer:
            writer.append(1, [1.5 - i / 4, i / 10], kind="log")
    done = run("tag", "runs/two", "good", "base", cwd=tmp_path)
    assert done.stdout == "good base\n", done.stderr
    asked = ["runs", "runs", "--columns", "loss,accuracy,tags", "--sort", "-loss", "--filter", "seed>=1"]
    lines = run(*asked, cwd=tmp_path).stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith(("one", "two", "three"))]
    assert rows == [["two", "1.25", "0.1", "good,", "base"], ["three", "1", "0.2"]]
    assert "2 of 3 runs" in lines
    (found,) = json.loads(run("runs", "runs", "--filter", "tags=good", "--json", cwd=tmp_path).stdout)
    assert (found["name"], found["seed"], found["loss"]) == ("two", 1, 1.25)
    assert run("tag", "runs/two", "--remove", "good", cwd=tmp_path).stdout == "base\n"
    for arguments, message in (
        (["runs", "runs", "--columns", "lose"], "column = 'lose': no run here has it; there are loss"),
        (["runs", "runs", "--filter", "loss>x"], "filter = 'loss>x': must compare with a number"),
        (["runs", "none"], "directory = 'none': must be a directory"),
        (["tag", "runs/two", "a b"], "tag = 'a b': must be one word"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_every_count_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    counts = {"warmup": 10, "batch-size": 64, "dataset-size": 1_000_000, "tokens-per-sample": 1024}
    counts["parameters"] = 124_000_000
    plain = [word for name, value in counts.items() for word in (f"--{name}", str(value))]
    short = [word for name, value in counts.items() for word in (f"--{name}", f"{value / 1000}e3")]
    first, second = (run("plan", "--lr", "1e-3", "--steps", "1e4", *words, "--toml") for words in (plain, short))
    assert "parameters = 124000000\n" in first.stdout
    assert first.stdout == second.stdout
    (tmp_path / "a.toml").write_text(first.stdout)
    moved = [run("transfer", "a.toml", "--batch-size", n, "--json", cwd=tmp_path) for n in ("128", "1.28e2")]
    assert moved[0].stdout == moved[1].stdout != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "--lr and --steps must be given"),
        ([*PLAN, "--optimizer", "adamx"], "optimizer = 'adamx': must be one of"),
        ([*PLAN, "--lr", "-1"], "lr = -1.0: must be a finite number ≥ 0"),
        ([*PLAN, "--beta1", "1"], "betas[0] = 1.0"),
        (
            [*PLAN, "--parameters", "1.5"],
            "Invalid value for '--parameters': 1.5: must be a whole number ≥ 1, such as 20000 or 2e4",
        ),
        ([*PLAN, "--batch-size", "-3"], "Invalid value for '--batch-size': -3: must be a whole number ≥ 1"),
        ([*PLAN, "--dataset-size", "nan"], "Invalid value for '--dataset-size': nan: must be a whole number ≥ 1"),
        (
            [*PLAN, "--tokens-per-sample", "1e999"],
            "Invalid value for '--tokens-per-sample': 1e999: must be a whole number ≥ 1",
        ),
        ([*PLAN, "--steps", "0"], "Invalid value for '--steps': 0: must be a whole number ≥ 1"),
        ([*PLAN, "--warmup", "many"], "Invalid value for '--warmup': many: must be a whole number ≥ 0"),
        (
            ["transfer", "a.toml", "--batch-size", "0.5"],
            "Invalid value for '--batch-size': 0.5: must be a whole number ≥ 1",
        ),
        ([*PLAN, "--schedule", "cosin"], "schedule = 'cosin': must be one of"),
        ([*PLAN, "--shape", "4xx"], "--shape = '4xx': must be whole numbers"),
        ([*PLAN, "--timescale", "5"], "leave out --wd"),
        (["plan", "--lr", "1", "--steps", "9", "--timescale", "0"], "--timescale = 0.0: must be a finite number > 1"),
        ([*PLAN, "--schedule", "step"], "must give one of the two"),
        ([*PLAN, "--schedule-option", "power"], "must be key=value"),
        (["plan", "a.toml", "--lr", "5"], "--lr: must be left out if there is a file"),
        ([*PLAN, "--toml", "--json"], "--toml: must be given without --json"),
        ([*PLAN, "--decay", "corrected", "--lr-max", "0"], "lr_max = 0.0: must be a finite number > 0"),
        ([*PLAN, "--lr-max", "1"], "--lr-max = 1.0: only allowed with --decay corrected"),
        ([*PLAN, "--optimizer", "ngd", "--beta2", "0.5"], "--beta2 = 0.5: must be left out, because ngd has none"),
        ([*PLAN, "--html", "no/such/folder/x.html"], "no/such/folder/x.html: cannot be read or written (No such file"),
        ([*PLAN, "--html", "."], ".: cannot be read or written (Is a directory)"),
        (["transfer", "--stps", "3"], "(see equipoise transfer --help)"),
        (["board", "--port", "70000"], "port = 70000: must be in 0 to 65535"),
        (["board", "--host", "no.such.host.invalid", "--port", "0"], "choose another --host"),
        ([*PLAN, "--optimizer", "muon", "--shape", "16"], None),
        (["plan", "missing.toml"], "missing.toml: cannot be read"),
        (["suggest", "--shape", "4x4"], "--steps must be given"),
        (["suggest", "--steps", "10", "--optimizer", "sgd"], "depends on the gradient's size"),
        (["suggest", "a.toml", "--steps", "10"], "--steps: must be left out if there is a file"),
        (["transfer", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str | None, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    if message is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--nope"], "No such option: --nope"),
        (["plan", "--lr", "fast"], "Invalid value for '--lr'"),
        (["plan", "--wd", "heavy"], "'heavy'"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_watch_prints_once_where_there_is_no_terminal(tmp_path: Path) -> None:
    from equipoise.monitor import Column, Layout, RunWriter, TensorInfo

    layout = Layout((Column("rotation", "a.weight"), Column("rotation", "b.weight")))
    tensors = [TensorInfo("a.weight", (2, 2)), TensorInfo("b.weight", (2, 2))]
    for name in ("one", "two"):
        with RunWriter(tmp_path / name, tensors=tensors, layouts=[layout]) as writer:
            writer.append(3, [0.125, 0.5])
    done = run("watch", "one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 3" in done.stdout
    assert "0.125" in done.stdout
    assert "a.weight" not in run("watch", "one", "--layers", "b.*", "--once", cwd=tmp_path).stdout
    listed = run("watch", ".", cwd=tmp_path).stdout
    assert "one" in listed
    assert "two" in listed
    for arguments, message in (
        (["watch", "none"], "none: there is no such run"),
        (["watch", "one", "--sort", "x"], "--sort = 'x': must be one of"),
        (["watch", "one", "--top", "0"], "Invalid value for '--top': 0: must be a whole number ≥ 1"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_no_command_shows_the_help() -> None:
    done = run()
    assert "Usage" in done.stdout + done.stderr


def test_watching_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from equipoise.monitor import Column, Layout, Run, RunWriter; "
        "from equipoise.monitor.runs.snapshot import SnapshotReader; "
        "from equipoise.monitor.runs.terminal import render; "
        "w = RunWriter(sys.argv[1], layouts=[Layout([Column('rotation', 'a')])]); w.append(1, [1.0]); w.close(); "
        "render(SnapshotReader(Run.open(sys.argv[1])).now()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


def test_planning_never_imports_torch() -> None:
    code = (
        "import sys; import equipoise.cli; from equipoise.planner import Setting, plan_setting; "
        "plan_setting(Setting.make(lr=1e-3, weight_decay=0.1, steps=100, schedule='cosine')).to_dict(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_plan_starts_light() -> None:
    """Torch, numba and pages take longer to import than a plan to make; the translator is for live optimizers alone."""
    code = (
        "import sys; from equipoise.cli import main; sys.argv[1:] = "
        "['plan', '--lr', '3e-4', '--wd', '0.1', '--steps', '2000', '--schedule', 'cosine', '--json']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numba', 'bokeh', 'matplotlib', 'pandas', 'scipy', 'equipoise.optim.dynamics_of'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["timescale_steps"] > 0


def test_the_lab_lists_without_torch() -> None:
    code = (
        "import sys; from equipoise.lab.report.terminal import catalogue; "
        "from equipoise.lab.report.ledger import ledger; "
        "assert len(catalogue()) > 20 and len(ledger()) > 50 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_needs_neither_numpy_nor_torch() -> None:
    code = "import sys, equipoise.cli; assert not {'numpy', 'torch', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    done = run("--help")
    assert done.returncode == 0
    assert "plan" in done.stdout
