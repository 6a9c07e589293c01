"""Public bugs are found and named; the page lists them all."""

import pytest
import torch
from tests import ROOT
from tests.auditing.bugs import BUGS, Bug
from tests.auditing.later_bugs import LATER


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("bug", [*BUGS[::3], *LATER], ids=lambda b: b.where)
def test_a_public_bug_is_named(bug: Bug) -> None:
    torch.manual_seed(0)
    assert bug.code in {f.code for f in bug.run().findings}


def test_the_page_lists_them() -> None:
    text = (ROOT / "docs" / "audit.md").read_text()
    assert [b.where for b in [*BUGS, *LATER] if b.where not in text or b.code not in text] == []
