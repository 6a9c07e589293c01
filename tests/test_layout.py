"""The house rules: imports go one way, public names are documented, and what the docs show runs."""

import ast
import importlib
import inspect
import pkgutil
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import tutorials

import equipoise
from tests import ROOT, forked

SOURCE = ROOT / "src" / "equipoise"
TESTS = ROOT / "tests"
MAY_IMPORT = {
    "_extras": set(),
    "_malloc": set(),
    "_terminal": set(),
    "_viewer": set(),
    "_check": set(),
    "finding": set(),
    "sources": set(),
    "theory": {"_check"},
    "schedules": {"_check", "theory", "_extras"},
    "geometry": {"_check", "theory"},
    "optim": {"_check", "theory", "schedules", "geometry"},
    "planner": {"_check", "finding", "_viewer", "theory", "schedules", "optim"},
    "monitor": {
        "_check",
        "finding",
        "_viewer",
        "_extras",
        "_malloc",
        "_terminal",
        "theory",
        "schedules",
        "optim",
        "planner",
    },
    "auditing": {"_extras", "_check", "finding", "theory", "optim", "planner", "monitor"},
    "board": {"_extras", "_check", "finding", "_malloc", "_terminal", "theory", "schedules", "planner", "monitor"},
    "tuning": {"_check", "_extras", "planner"},
    "lab": {
        "_check",
        "finding",
        "_extras",
        "theory",
        "schedules",
        "geometry",
        "optim",
        "planner",
        "monitor",
        "tuning",
        "board",
    },
    "cli": {
        "_check",
        "finding",
        "_extras",
        "_terminal",
        "theory",
        "schedules",
        "planner",
        "monitor",
        "auditing",
        "board",
        "lab",
        "tuning",
    },
}
"""What each part may import of the others. Every part must be listed."""

TORCH_FREE = ("theory",)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def reached_by(path: Path) -> set[str]:
    """What a file reaches through the package itself: `import equipoise` and then `equipoise.board`."""
    tree = ast.parse(path.read_text())
    own = {
        a.asname or a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import)
        for a in n.names
        if a.name == "equipoise"
    }
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and getattr(n.value, "id", None) in own}
    return {f"equipoise.{equipoise._FROM.get(name, name)}" for name in names}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [p for p in sorted(SOURCE.rglob("*.py")) if part_of(p) not in ("__init__", "_version")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    imported = imported_by(path) | reached_by(path)
    parts = {name.split(".")[1] for name in imported if name.startswith("equipoise.")} - {part, "_version"}
    others = parts & (set(MAY_IMPORT) | {p.stem for p in SOURCE.iterdir()})
    assert others <= MAY_IMPORT[part]
    if part in TORCH_FREE:
        assert not any(name.split(".")[0] == "torch" for name in imported)


def test_a_file_that_reaches_through_the_package_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "low.py"
    file.write_text("import equipoise as eq\n\neq.board.show(1)\neq.watch(2)\n")
    assert reached_by(file) == {"equipoise.board", "equipoise.monitor"}


def test_folders_are_small_enough_to_be_read() -> None:
    folders = {p.parent for p in SOURCE.rglob("*.py")}
    assert {str(f.relative_to(SOURCE)) for f in folders if len(list(f.glob("*.py"))) > 16} == set()


def test_tests_lie_where_the_source_lies() -> None:
    """Only `fuzz` is no package of the source: it draws inputs for all of them."""
    folders = {str(p.parent.relative_to(TESTS)) for p in TESTS.rglob("*.py")}
    assert {f for f in folders if not (SOURCE / f).is_dir()} == {"fuzz"}


@pytest.mark.parametrize("folder", sorted({p.parent for p in SOURCE.rglob("*.py")}), ids=lambda p: p.name)
def test_packages_say_what_they_are_for(folder: Path) -> None:
    """What comes in, what goes out, and in which order to read; the files that are named are there."""
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len(said.splitlines()) <= 20
    way = re.search(r"Comes in: .*? Goes out: .*?\b[Rr]ead\b(.*)", " ".join(said.split()))
    assert way is not None
    assert {p.stem for p in folder.iterdir()} & set(re.findall(r"`(\w+)`", way[1]))


@pytest.mark.parametrize("name", equipoise._FROM)
def test_no_module_hides_a_public_name(name: str) -> None:
    """A type checker may take a package's module for its function of the same name."""
    assert not (SOURCE / equipoise._FROM[name] / f"{name}.py").exists()


def public_modules() -> list[ModuleType]:
    found = [equipoise]
    for info in pkgutil.walk_packages(equipoise.__path__, "equipoise."):
        if not any(piece.startswith("_") for piece in info.name.split(".")[1:]):
            found.append(importlib.import_module(info.name))
    return found


@pytest.mark.parametrize("module", public_modules(), ids=lambda m: m.__name__)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    assert module.__doc__, "the module itself"
    own = [n for n in vars(module) if not n.startswith("_")]
    for name in getattr(module, "__all__", own):
        thing = getattr(module, name)
        if not (inspect.isfunction(thing) or inspect.isclass(thing)):
            continue
        if not thing.__module__.startswith("equipoise"):
            continue
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for key, member in vars(thing).items():
                if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{key}"


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", [c for b in blocks(ROOT / "README.md", "console") for c in tutorials.commands(b)])
def test_commands_of_the_readme_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tutorials.said(command)


def test_the_readme_shows_commands() -> None:
    assert sum(len(tutorials.commands(b)) for b in blocks(ROOT / "README.md", "console")) >= 3
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy:DeprecationWarning",  # sqlalchemy's, about mlflow
    "ignore:.*treespec, LeafSpec",  # torch's, about lightning
    "ignore:.*does not have many workers",
)
@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if blocks(p, "python") and p not in tutorials.PAGES], ids=lambda p: p.name
)
def test_python_of_the_docs_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "docs"}
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), scope)


def words(text: str) -> list[str]:
    """The text without its numbers, which differ between machines, line by line."""
    return [
        " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line).split()) for line in text.splitlines() if line.strip()
    ]


def said(command: str) -> str:
    """What a command prints, without the time that it takes to load torch; what needs a shell runs as in the README."""
    if ">" in command:
        return tutorials.said(command)
    done = forked.equipoise(*shlex.split(command.removeprefix("equipoise ")), check=True)
    assert done.stdout, f"{command} says nothing"
    return done.stdout


@pytest.mark.parametrize("path", tutorials.PAGES, ids=lambda p: p.name)
def test_tutorials_run_and_show_what_they_print(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = list(tutorials.parts(path, said))
    assert {part.language for part in parts} == {"python", "console"}
    assert any("assert " in part.code for part in parts), "it checks what it says"
    for part in parts:
        if part.language == "python":
            assert words(part.printed) == words(part.shown), "run benchmarks/tutorials.py --write"
        else:
            assert set(words(part.shown)) <= set(words(part.printed)), "the page shows other lines than the command"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target
