"""Print constraints for pip: what is installed here, or the oldest versions that the project allows.

    python .ci/pins.py > constraints.txt            everything that `.[dev]` has brought into this environment
    python .ci/pins.py oldest > oldest.txt          the lower bounds of what every install needs
    python .ci/pins.py hashes > hashes.txt          constraints.txt with the hashes of the index, but without torch

Constraints have no hashes: with one of them pip wants one for every requirement, and refuses the project itself, which
is installed from its directory (`-e .`). hashes.txt is for those who want them. It leaves torch out, whose builds have
other hashes than the index:

    pip install torch==2.13.0                                   # from where you trust
    pip install --require-hashes --no-deps -r hashes.txt
    pip install --no-deps --no-build-isolation -e .
"""

import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.utils import parse_wheel_filename as parse_wheel
from packaging.version import Version
from pip._internal.models.index import PyPI

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

HEAD = """\
# Every install passes `-c constraints.txt`: what `.[dev]` brings has the versions that the project is tested with.
# torch is the CPU build; without this line pip takes gigabytes of CUDA. Made by `make pins`; hashes.txt has
# the same with hashes.
"""


def asked(project: dict[str, Any]) -> Iterator[Requirement]:
    """What the project asks for, with all extras; not itself."""
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *(line for lines in extras.values() for line in lines)):
        one = Requirement(text)
        if canonicalize_name(one.name) != "equipoise":
            yield one


def installed(wanted: Iterator[Requirement]) -> dict[str, str]:
    """The versions of these and of all that they need, as far as it is installed here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(one, frozenset[str]()) for one in wanted]
    while todo:
        one, extras = todo.pop()
        marker = one.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            there = distribution(one.name)
        except PackageNotFoundError:
            continue
        found[key[0]] = there.version.partition("+")[0]  # of a build such as +cpu the index knows nothing
        todo += [(Requirement(text), key[1]) for text in there.requires or ()]
    return found


def oldest(wanted: list[str]) -> dict[str, str]:
    """The lower bounds, with any last part: 1.26 is 1.26.*."""
    asked = map(Requirement, wanted)
    return {canonicalize_name(r.name): f"{s.version}.*" for r in asked for s in r.specifier if s.operator == ">="}


def hashed(name: str, version: str) -> list[str]:
    """The hashes of all files of a version, as the index has them."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    found: set[str] = set()
    for file, digest in re.findall(r"/([^/\"#]+)#sha256=([0-9a-f]{64})", page):
        try:
            there = (parse_wheel if file.endswith(".whl") else parse_sdist_filename)(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue  # an egg, or an installer
        if there == Version(version):
            found.add(digest)
    if not found:
        raise SystemExit(f"{name}=={version}: the index has no file of it")
    return sorted(found)


def with_hashes(pins: Path) -> Iterator[str]:
    """The lines of constraints.txt with the hashes of each, for `pip install --require-hashes`."""
    for line in pins.read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#") and name not in ("torch", "pip"):
            yield " \\\n    ".join([line, *(f"--hash=sha256:{x}" for x in hashed(name, version))]) + "\n"


def main() -> None:
    """Print what is asked for."""
    if sys.argv[1:] == ["hashes"]:
        sys.stdout.writelines(with_hashes(PROJECT.with_name("constraints.txt")))
        return
    project = tomllib.loads(PROJECT.read_text())["project"]
    old = sys.argv[1:] == ["oldest"]
    pins = oldest(project["dependencies"]) if old else installed(iter([*asked(project), Requirement("pip")]))
    sys.stdout.write("" if old else HEAD)
    sys.stdout.writelines(f"{name}=={pins[name]}\n" for name in sorted(pins))


if __name__ == "__main__":
    main()
