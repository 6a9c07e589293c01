"""What the site needs besides the pages in docs/: MkDocs calls these functions while it builds.

Pages link to files of the repository as they lie there (`../CHANGELOG.md`), so that links work where the repository is
read. The site gets those files from where they are, and links are turned towards them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the repository's root, and what they are called on the site."""


def filled(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation with every `folder/*` replaced by the pages of that folder."""
    out = []
    for entry in nav:
        (title, what), *_ = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(what, list):
            what = filled(what, docs)
        elif what.endswith("/*"):
            what = [p.relative_to(docs).as_posix() for p in sorted(docs.glob(f"{what}.md"))]
        out.append({title: what} if title else what)
    return out


def on_config(config: MkDocsConfig) -> None:
    """List the pages of folders in the navigation."""
    config.nav = filled(config.nav or [], Path(config.docs_dir))


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the repository's root, and the examples."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "examples").glob("*.py")):
        name = f"examples/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository towards their place on the site."""
    up = "../" * page.file.src_uri.count("/")
    base = r"(?:docs/)?" if page.file.src_uri in PAGES.values() else re.escape(f"../{up}")

    def turned(found: re.Match[str]) -> str:
        target = found[1]
        return f"]({up}{PAGES.get(target, target)}"

    return re.sub(rf"\]\({base}((?!https?:)[\w./-]+)", turned, markdown)
