"""The package: light to import, every public name documented."""

import doctest
import inspect
import subprocess
import sys

import pytest
from tests import ROOT

import equipoise.schedules as sch


def test_import_leaves_torch_and_matplotlib_alone() -> None:
    code = (
        "import sys, equipoise.schedules as sch; sch.warmup_cosine(10, warmup=2).values(); sch.named('wsd', steps=9)\n"
        "assert not {'torch', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "sch.Scheduler; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_of_the_page_run() -> None:
    page = ROOT / "docs" / "schedules.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert tried > 35


def test_every_curve_is_in_the_tables_of_the_page() -> None:
    page = (ROOT / "docs" / "schedules.md").read_text()
    for name in sch.__all__:
        assert f"`{name}" in page or f"{name}(" in page, name


def test_all_names_exist_and_have_a_docstring() -> None:
    assert sch.__all__ == sorted(sch.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert dir(sch) == sorted(sch.__all__)
    for name in sch.__all__:
        value = getattr(sch, name)
        if not isinstance(value, tuple):
            assert inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sch.nothing  # type: ignore[attr-defined]
