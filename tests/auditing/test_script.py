"""Scripts are run, stopped, and their failures said."""

from pathlib import Path

import pytest
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
    with pytest.raises(ValueError, match=r"it ended, and no torch\.optim\.Optimizer had made more than 0 steps"):
        audit_script(script(tmp_path), ["0"])
    with pytest.raises(ValueError, match="is no file"):
        audit_script(tmp_path / "none.py")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path)
    run = CliRunner().invoke(app, ["audit", path, "--steps", "4", "--fail-on", "warning", "-o", "a.html", "--", "50"])
    assert run.exit_code == 0, run.output
    assert "SGD" in run.output
    assert (tmp_path / "a.html").exists()
    assert CliRunner().invoke(app, ["audit", path, "--steps", "4", "--fail-on", "info", "--", "5"]).exit_code == 1
