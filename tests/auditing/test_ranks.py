"""Two gloo processes: sound training raises nothing, and ranks that drift apart are told."""

import json
from typing import Any

import pytest
import torch.distributed as dist
from tests import forked
from tests.auditing import two_ranks

from equipoise.auditing.ranks import apart

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

SOUND = ("AdamW · mlp · DDP, accumulated", "eq.Muon · mlp · FSDP2", "SGD · attention · DDP", "alone")
NAMED = {
    "unlike starts": "although all of them get the same gradients",
    "unlike gradients": "and their gradients already differed",
    "unlike steps": "although their gradients were equal",
    "unlike scales": "and their gradients already differed",
    "apart": "and their gradients already differed",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What both ranks said. torch may abort after a wait in its store has run out: what is missing is run once more."""
    found, missing = dict[str, Any](), [*NAMED, *SOUND]
    for attempt in range(2):
        out = tmp_path_factory.mktemp("ranks") / "told.json"
        _, said = forked.ranks("-m", "tests.auditing.two_ranks", out, *missing)
        found |= json.loads(out.read_text()) if out.exists() else {}
        missing = [case for case in missing if case not in found]
        assert not (missing and attempt), said[-3000:]
        if not missing:
            break
    return found


@pytest.mark.parametrize("case", SOUND)
def test_sound_training_has_no_warning(case: str, told: dict[str, Any]) -> None:
    assert [rank["warned"] for rank in told[case]] == ([[], ["audit-no-steps"]] if case == "alone" else [[], []])


@pytest.mark.parametrize("case", NAMED)
def test_ranks_that_differ_are_named(case: str, told: dict[str, Any]) -> None:
    for rank in told[case]:
        assert "audit-ranks" in rank["warned"]
        assert any(NAMED[case] in said for said in rank["said"])


def test_what_is_each_ranks_own_is_none() -> None:
    """Experts differ in weights and gradients; where all tensors do, nothing is shared."""
    shared, other = [[1.0, 1.0, 4.0]] * 3, [[2.0, 3.0, 4.0]] * 3
    assert list(apart([{"a": shared, "experts": shared}, {"a": shared, "experts": other}])) == []
    (found,) = apart([{"a": shared}, {"a": other}])
    assert (found.code, found.severity) == ("audit-ranks", "warning")
    assert set(two_ranks.FAULTS) == set(NAMED)
