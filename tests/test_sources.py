"""Citations lead to a source: every key that is cited exists, and nothing is cited in another way."""

import io
import re
import tokenize
from pathlib import Path

import pytest

from equipoise import sources
from tests import ROOT

SUFFIXES = {".py", ".md", ".json", ".svg", ".js", ".toml"}
TEXTS = sorted(
    path
    for place in ("src", "docs", "examples", "benchmarks")
    for path in (ROOT / place).rglob("*")
    if path.suffix in SUFFIXES
) + [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
OTHER = {ROOT / "src/equipoise/sources.py", ROOT / "docs/sources.md"}
"""They hold titles, authors and addresses."""

OLD = re.compile(
    r"\bTHEORY \d|(?<![\w.{])RE(?![\w\]=}])|\b[Tt]hesis\b|(?<!-)\b[Mm]emory article\b|\b[Nn]orm note\b"
    r"|\bMuon appendix\b|\barXiv\b|\b[12]\d{3}\.\d{5}\b|\b[A-Z]\w+ et al\b|\b[A-Z]\w+ & [A-Z]\w+ \d{4}"
)
"""How documents were cited before there were keys: short names, arXiv numbers, authors with a year."""


def test_the_page_is_made_from_the_module() -> None:
    written = (ROOT / "docs/sources.md").read_text(encoding="utf-8")
    assert written == sources.markdown(), "run: python -m equipoise.sources > docs/sources.md"


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_citations_lead_to_a_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = "\n".join(said(text))
    unknown = set(sources.cited(text)) - set(sources.SOURCES)
    assert not unknown, f"{unknown}: no key of equipoise/sources.py"
    if path not in OTHER and path.suffix != ".svg":
        assert OLD.findall(text) == [], "cite by a key of equipoise/sources.py"


def said(code: str) -> list[str]:
    """What is written in a program's strings and comments."""
    kinds = {tokenize.STRING, tokenize.COMMENT}
    return [t.string for t in tokenize.generate_tokens(io.StringIO(code).readline) if t.type in kinds]


def test_every_source_is_cited() -> None:
    everything = "\n".join(p.read_text(encoding="utf-8") for p in TEXTS if p not in OTHER)
    assert set(sources.SOURCES) - set(sources.cited(everything)) == set()


def test_a_wrong_citation_is_found() -> None:
    assert sources.cited("as [koson2024] says, not w[j] or [text](page.md)") == ["koson2024"]
    for old in ("THEORY 7", "RE Fig. 3", "thesis 3.4", "arXiv 2305.17212", "Kingma & Ba 2015", "Chen et al. 2023"):
        assert OLD.search(old), old
    assert not OLD.search("[kosson2024] Fig. 3, [notepad] 3.4, re.compile, BEFORE, hypothesis")
    with pytest.raises(ValueError, match="no source has the key 'RE'; allowed are: abramowitz1964, amsel2025, "):
        sources.source("RE")
