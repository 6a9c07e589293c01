"""Print constraints for pip: what is installed here, or the oldest versions that the project allows.

    python .ci/pins.py > constraints.txt            everything that `.[dev]` has brought into this environment
    python .ci/pins.py oldest > oldest.txt          the lower bounds of what every install needs

There are no hashes. With one hash in a constraints file pip wants one for every requirement, and refuses the project
itself, which is installed from its directory (`-e .`); and the wheel of torch that lies on a disk is another than the
index has.
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

HEAD = """\
# Every install passes `-c constraints.txt`: what `.[dev]` brings has the versions that the project is tested with.
# torch is the CPU build; without this line pip takes gigabytes of CUDA. Made by `make pins`; .ci/pins.py says why
# there are no hashes.
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


def main() -> None:
    """Print what is asked for."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    old = sys.argv[1:] == ["oldest"]
    pins = oldest(project["dependencies"]) if old else installed(iter([*asked(project), Requirement("pip")]))
    sys.stdout.write("" if old else HEAD)
    sys.stdout.writelines(f"{name}=={pins[name]}\n" for name in sorted(pins))


if __name__ == "__main__":
    main()
