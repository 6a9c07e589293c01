"""Call npm, pip and apt with the configuration of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import final

from equipoise.lab.data.packages.catalogue import Package

ENDINGS = {"npm": ".tgz", "pip": ".tar.gz", "apt": ".deb"}
PROGRAMS = {"npm": "npm", "apt": "apt-get"}
POLL = 0.1
URI = re.compile(r"'[^']*' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
VERSION = {"npm": r"-(\d[^/]*)\.tgz", "pip": r"-(\d[^/]*)\.tar\.gz", "apt": r"_([^_]+)_[^_]+\.deb"}


@final
@dataclass(frozen=True)
class PackageFile:
    """A package's file as the registry has it: bytes, and SHA-256 where it is known."""

    size: int
    sha256: str | None


def expected_file(package: Package) -> PackageFile:
    """What the package's file must be. Only apt is asked: versions in Debian change, the others are fixed."""
    if package.client != "apt":
        return PackageFile(package.size, package.sha256)
    said = _run(package, [*_program(package), "download", "--print-uris", package.spec], Path.cwd(), dict(os.environ))
    found = URI.search(said)
    return PackageFile(int(found["size"]), found["sha256"]) if found else PackageFile(package.size, None)


def fetch(package: Package, folder: Path, scratch: Path, report: Callable[[int], None]) -> Path:
    """Fetch a package's file into a folder.

    Args:
        package: which one.
        folder: where to; has nothing else.
        scratch: for what the client writes meanwhile.
        report: is told how many bytes there are by now.
    """
    pip = ["download", "--quiet", "--no-deps", "--no-binary", package.package, "--dest", str(folder), package.spec]
    rest = {
        "npm": ["pack", package.spec, "--ignore-scripts", "--loglevel=error"],
        "pip": [*pip, "--disable-pip-version-check", "--no-input"],
        "apt": ["download", "--quiet=2", package.spec],
    }[package.client]
    # What clients write before they are done goes where it can be counted, and is removed with the rest.
    own = {"TMPDIR": str(scratch), "npm_config_cache": str(scratch / "npm"), "npm_config_update_notifier": "false"}
    _run(
        package, [*_program(package), *rest], folder, dict(os.environ) | own,
        lambda: report(_written(folder.parent)),
    )  # fmt: skip
    found = archive_in(package, folder)
    if found is None:
        raise ValueError(f"{package.client} fetched {package.spec}, but there is no file *{ENDINGS[package.client]}")
    return found


def archive_in(package: Package, folder: Path) -> Path | None:
    """The package's file in a folder, if there is one."""
    return next(iter(sorted(folder.glob(f"*{ENDINGS[package.client]}"))), None)


def version_of(package: Package, archive: Path) -> str:
    """The version that is part of a file's name."""
    found = re.search(VERSION[package.client], archive.name)
    return found[1].replace("%3a", ":").replace("%7e", "~") if found else "unknown"


def by_hand(package: Package) -> str:
    """What a user may type instead."""
    return {
        "npm": f"npm pack {package.spec}",
        "pip": f"pip download --no-deps --no-binary {package.package} {package.spec}",
        "apt": f"apt-get download {package.spec}",
    }[package.client]


def _program(package: Package) -> list[str]:
    client = package.client
    # Not importlib.util.find_spec: setuptools hooks that for pip, and warns where distutils was imported before.
    if client == "pip" and PathFinder.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which(PROGRAMS.get(client, client))
    if found is None:
        raise ValueError(_cannot(package, f"{PROGRAMS.get(client, client)} is not installed."))
    return [found]


def _cannot(package: Package, why: str) -> str:
    update = " after apt-get update" if package.client == "apt" else ""
    return (
        f"cannot fetch {package.name}: {why} It is in the {package.client} package {package.spec}: where that can be "
        f"reached, `equipoise lab data get {package.name}` gets it{update}, and its folder can be copied from there. "
        f"Or give the loader the path of your own copy: {package.own}"
    )


def _run(
    package: Package, command: list[str], folder: Path, environment: dict[str, str],
    poll: Callable[[], None] = lambda: None,
) -> str:  # fmt: skip
    """Run a client; what it printed. What goes wrong is a message of one line."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip
    try:
        while True:
            try:
                out, error = process.communicate(timeout=POLL)
                break
            except subprocess.TimeoutExpired:
                poll()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise ValueError(_cannot(package, f"{package.client} says {_reason(error or out)!r}; is this machine online?"))
    return out


def _reason(said: str) -> str:
    """The line of what a client said that tells most: npm's first one that is no mere code, the others' last error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    npm = [found[1] for line in lines if (found := re.match(r"npm (?:ERR!|error) (.*)", line))]
    told = [line for line in npm if not re.match(r"(code|errno|syscall|type|path|dest) ", line)]
    errors = [found[1] for line in lines if (found := re.match(r"(?:E:|ERROR:)\s*(.*)", line))]
    return (told or npm)[0] if npm else (errors or lines or ["nothing"])[-1]


def _written(folder: Path) -> int:
    """Bytes in a folder; files come and go while the client works."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
