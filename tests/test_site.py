"""The docs build as a site, without a warning, and nothing on it comes from another host."""

import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from tests import ROOT

DOCS = ROOT / "docs"
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("needs Sphinx, MyST and furo: pip install 'equipoise[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-d",
            str(out / "read"),
            "docs",
            str(out / "site"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    return out / "site"


def test_every_page_is_there(site: Path) -> None:
    wanted = {p.relative_to(DOCS).with_suffix(".html") for p in DOCS.rglob("*.md")}
    assert wanted <= {p.relative_to(site) for p in site.rglob("*.html")}
    menu = (site / "index.html").read_text()
    for page in wanted - {Path("index.html")}:
        assert f'href="{page.as_posix()}"' in menu, "every page is in the menu"
    captions = re.findall(r'class="caption-text">([^<]+)<', menu)
    assert captions == ["Start", "Tutorials", "Concepts", "Guides", "API", "Evidence", "Log"]


def test_pages_of_the_repository_are_filled_in(site: Path) -> None:
    for page, words in (("tour", "Install"), ("changelog", "Unreleased"), ("contributing", "One equation, one place")):
        assert words in (site / f"{page}.html").read_text(), page


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    found = [(p.name, target) for p in pages for target in LOADED.findall(p.read_text())]
    assert len(found) > len(pages), "every page has a style"
    assert [f for f in found if "//" in f[1]] == []
    assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", (site / "_static/style.css").read_text())


def test_links_lead_to_pages_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for target in re.findall(r"<a\b[^>]*?\bhref=\"([^\"#]+)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tables_and_lists_are_made_of_what_looks_like_them(site: Path) -> None:
    """What shows a repository is less strict: a list may want an empty line before it. Docstrings are apart."""
    for page in (p for p in site.rglob("*.html") if p.parent.name != "api"):
        article = re.search(r"<article.*?</article>", page.read_text(), re.DOTALL)
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", article[0] if article else "", flags=re.DOTALL)
        assert not re.search(r"<p>[^<]*\n(\||- |\* |\d+\. )", text), page.name
        assert "**" not in text, page.name
        assert "](" not in text, page.name


def public_names() -> list[tuple[str, str, str]]:
    """Page, package and name of everything public."""
    found = []
    for page in sorted((DOCS / "api").glob("*.md")):
        for package in re.findall(r"^\.\. public:: (\S+)", page.read_text(), re.MULTILINE):
            found += [(page.stem, package, name) for name in importlib.import_module(package).__all__]
    return found


def test_every_package_is_in_the_api() -> None:
    listed = {package for _, package, _ in public_names()}
    packages = {
        equipoise.__name__,
        *(i.name for i in pkgutil.walk_packages(equipoise.__path__, "equipoise.") if i.ispkg),
    }
    assert {p for p in packages if hasattr(importlib.import_module(p), "__all__")} <= listed


def test_every_public_name_is_in_the_api(site: Path) -> None:
    pages = {page.stem: page.read_text() for page in (site / "api").glob("*.html")}
    for page, package, name in public_names():
        thing = getattr(importlib.import_module(package), name)
        if not inspect.ismodule(thing):
            assert f'id="{package}.{name}"' in pages[page] or f">{name}<" in pages[page], f"{package}.{name}"


def test_every_public_name_has_an_example_that_is_run() -> None:
    """In its docstring, or on the page of its package: both are run."""
    for page, package, name in public_names():
        shown = "".join(re.findall(r"^```python\n(.*?)^```", (DOCS / "api" / f"{page}.md").read_text(), re.M | re.S))
        doc = inspect.getdoc(getattr(importlib.import_module(package), name)) or ""
        if package != "equipoise":  # whose names are those of other packages
            assert ">>> " in doc or re.search(rf"\b{name}\b", shown), f"{package}.{name}"
