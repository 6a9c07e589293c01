"""Run the tutorials from top to bottom, and put what their code prints into the pages.

python benchmarks/tutorials.py            # run them
python benchmarks/tutorials.py --write    # and write each output below its code, as a block of text

What a command prints is long, so a page shows a few lines of it, chosen by hand; tests hold them to the command.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
PAGES = sorted(p for p in FOLDER.glob("*.md") if p.stem != "index")
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A block of a page, what the page says that it prints, and what it prints."""

    language: str
    code: str
    shown: str
    printed: str
    place: tuple[int, int]


def commands(block: str) -> list[str]:
    """The commands of a block, without the dollar."""
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def said(command: str) -> str:
    """What a command prints, run as a reader would, in a shell, by the Python that runs this."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    assert done.stdout or ">" in command, f"{command} says nothing"
    return done.stdout


def parts(page: Path, said: Callable[[str], str] = said) -> Iterator[Part]:
    """Run the blocks of a page one after the other, in the current directory; `said` runs the commands."""
    scope: dict[str, object] = {"__name__": "docs"}
    for found in BLOCK.finditer(page.read_text()):
        language, code, shown = found.groups()
        out = io.StringIO()
        if language == "python":
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(page), "exec"), scope)
        else:
            out.write("".join(said(command) for command in commands(code)))
        yield Part(language, code, shown or "", out.getvalue(), found.span())


def written(page: Path) -> str:
    """The page with what its Python prints."""
    text, end, pieces = page.read_text(), 0, list[str]()
    for part in parts(page):
        start, stop = part.place
        pieces.append(text[end:start])
        printed = part.printed if part.language == "python" else part.shown
        lines = "\n".join(line.rstrip() for line in printed.splitlines())
        pieces.append(f"```{part.language}\n{part.code}```\n" + (f"\n```text\n{lines}\n```\n" if lines else ""))
        end = stop
    return "".join(pieces) + text[end:]


def main() -> None:
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            text = written(page)
        print(text if "--write" not in sys.argv else page)
        if "--write" in sys.argv:
            page.write_text(text)


if __name__ == "__main__":
    main()
