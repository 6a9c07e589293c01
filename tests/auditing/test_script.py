"""Scripts are run, stopped, and their failures said."""

import json
from pathlib import Path

import pytest
import torch
from tests.auditing.loops import warned
from typer.testing import CliRunner

from equipoise.auditing import audit_script
from equipoise.cli import app

TRAIN = """
import sys
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
if __name__ == "__main__":
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    {end}
"""


def script(folder: Path, *, optimizer: str = "SGD", end: str = "__import__('pathlib').Path('ended').touch()") -> str:
    path = folder / "train.py"
    path.write_text(TRAIN.format(optimizer=optimizer, end=end))
    return str(path)


def test_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = audit_script(script(tmp_path), ["500"], steps=4)
    assert seen.recorded == 4
    assert not (tmp_path / "ended").exists()
    assert [row.tensors for row in seen.table] == [("weight", "bias")]


def test_fewer_steps_failures_and_no_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert audit_script(script(tmp_path), ["5"], steps=9).recorded == 3
    failed = audit_script(script(tmp_path, end="1 / 0"), ["5"], steps=9)
    assert "ZeroDivisionError" in next(f.evidence for f in failed.findings if f.code == "audit-fewer-steps")
    with pytest.raises(ValueError, match="it ended, and no optimizer stepped in this process"):
        audit_script(script(tmp_path), ["0"])
    with pytest.raises(ValueError, match=r"SGD made 1 step: at least 3 are needed, of which 2 find the optimizers;"):
        audit_script(script(tmp_path), ["1"])
    with pytest.raises(ValueError, match="is no file"):
        audit_script(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print(1)", "it ended, and no optimizer stepped in this process"),
        ("x = 1\nimport no_such_module", r"No module named 'no_such_module' \(line 2\), before enough steps"),
        ("def f(:", r"it failed with SyntaxError: invalid syntax \(train.py, line 1\)"),
        ("raise SystemExit(2)", "exit code 2 before any optimizer stepped; give its own arguments after --"),
        (
            TRAIN.format(optimizer="SGD", end="").replace("optimizer.step()", "pass"),
            r"step\(\) of SGD was never called",
        ),
        (TRAIN.format(optimizer="LBFGS", end=""), "optimizer = LBFGS: it takes several steps"),
    ],
)  # fmt: skip
def test_why_nothing_was_recorded(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text.replace("optimizer.step()", "optimizer.step(lambda: model(torch.randn(2, 6)).sum())"))
    with pytest.raises(ValueError, match=said):
        audit_script(path, [] if "sys.argv" not in text else ["9"])


GAN = """
import torch
maker, judge = torch.nn.Linear(4, 6), torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
first, second = torch.optim.Adam(maker.parameters(), lr=1e-3), torch.optim.SGD(judge.parameters(), lr=0.1)
loss = torch.nn.functional.softplus
for step in range(100):
    for _ in range(3):
        second.zero_grad()
        (loss(judge(maker(torch.randn(8, 4)).detach())) + loss(-judge(torch.randn(8, 6)))).mean().backward()
        second.step()
    first.zero_grad()
    loss(-judge(maker(torch.randn(8, 4)))).mean().backward()
    first.step()
__import__("pathlib").Path("ended").touch()
"""


def test_an_optimizer_that_steps_more_seldom_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(GAN)
    seen = audit_script(tmp_path / "train.py", steps=8)
    assert warned(seen) == []
    assert {row.rule for row in seen.table} == {"Adam", "SGD"}
    assert not (tmp_path / "ended").exists()


OWN = """
import torch
class Descent:
    def __init__(self, params):
        self.param_groups = [{"params": list(params), "lr": 0.1}]
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.data -= self.param_groups[0]["lr"] * p.grad
model = torch.nn.Linear(6, 3)
optimizer = Descent(model.parameters())
for step in range(100):
    model.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
__import__("pathlib").Path("ended").touch()
"""


def test_an_optimizer_that_is_none_of_torch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OWN)
    backward = torch.autograd.backward
    seen = audit_script(tmp_path / "train.py", steps=5)
    assert [row.rule for row in seen.table] == ["SGD"]
    assert not (tmp_path / "ended").exists()
    assert torch.autograd.backward is backward


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, end="print('talk')")
    run = CliRunner().invoke(app, ["audit", path, "--steps", "4", "--fail-on", "warning", "-o", "a.html", "--", "50"])
    assert run.exit_code == 0, run.output
    assert "SGD" in run.output
    assert (tmp_path / "a.html").exists()
    assert CliRunner().invoke(app, ["audit", path, "--steps", "4", "--fail-on", "info", "--", "5"]).exit_code == 1
    loud = CliRunner().invoke(app, ["audit", path, "--steps", "9", "--json", "--", "5"])
    assert json.loads(loud.stdout)["steps"] == 3
    assert "talk" in loud.stderr
