"""A board in a process of its own, as the command starts it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def command(*words: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "equipoise.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )


@contextmanager
def board(directory: Path) -> Iterator[str]:
    """The address of a board of this directory, without a slash at its end."""
    process = command("board", str(directory), "--port", "0")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(http://\S+:\d+)/", line)
        assert found, line + process.stdout.read()
        yield found.group(1)
    finally:
        process.terminate()
        process.communicate(timeout=300)
