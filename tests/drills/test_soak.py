"""A short soak: a watched training and a live board hold their memory. The long one is benchmarks/soak.py."""

import statistics
import sys
from pathlib import Path

import pytest
import soak

SHORT = """
import sys
from equipoise.board import server
server.UNUSED = 1
server.serve(sys.argv[1], port=0, started=lambda board: print(board.url, flush=True))
"""
"""What `equipoise board` is, but that it forgets pages after a second: many come and go in a few."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat(tmp_path: Path) -> None:
    """From the first to the last third after a warm-up: 10 MB more for the training at most, and 30 for the board.

    A page takes some 5 MB, so that a board which keeps its pages fails this after a dozen.
    """
    samples = list(soak.soak(tmp_path, 20.0, every=0.2, pause=0.005, board=("-c", SHORT)))
    late = [s for s in samples if s.seconds > 6]
    assert len(late) >= 3
    assert late[-1].steps > late[0].steps, "it trains"
    third = len(late) // 3
    for memory, most in (("trainer", 10.0), ("board", 30.0)):
        seen = [getattr(s, memory) for s in late]
        grown = statistics.mean(seen[-third:]) - statistics.mean(seen[:third])
        assert grown < most, (memory, seen)
