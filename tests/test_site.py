"""The docs build as a site, without a warning, and nothing on it comes from another host."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material: pip install 'equipoise[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # the theme's own news, of no page
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    return out


def test_every_page_is_there(site: Path) -> None:
    wanted = {p.relative_to(DOCS).with_suffix(".html") for p in DOCS.rglob("*.md")}
    wanted |= {Path("readme.html"), Path("changelog.html"), Path("contributing.html")}
    assert wanted <= {p.relative_to(site) for p in site.rglob("*.html")}
    menu = (site / "index.html").read_text()
    for page in wanted - {Path("index.html")}:
        assert f'href="{page.as_posix()}"' in menu, "every page is in the menu"


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    found = [(p.name, target) for p in pages for target in LOADED.findall(p.read_text())]
    assert len(found) > len(pages), "every page has a style"
    assert [f for f in found if "//" in f[1]] == []
    assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", (site / "style.css").read_text())


def test_links_lead_to_pages_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for target in re.findall(r"<a\b[^>]*?\bhref=\"([^\"#]+)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tables_and_lists_are_made_of_what_looks_like_them(site: Path) -> None:
    """Python-Markdown is stricter than what shows a repository: a list wants an empty line before it, and so on."""
    for page in site.rglob("*.html"):
        article = re.search(r"<article.*?</article>", page.read_text(), re.DOTALL)
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", article[0] if article else "", flags=re.DOTALL)
        assert not re.search(r"<p>[^<]*\n(\||- |\* |\d+\. )", text), page.name
        assert "**" not in text, page.name
        assert "](" not in text, page.name


def test_a_new_page_of_the_lab_needs_no_entry() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert "lab/*" in config
    assert not any(f"lab/{p.name}" in config for p in (DOCS / "lab").glob("*.md"))
