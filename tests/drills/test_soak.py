"""A short soak: a watched training and a live board that is looked at hold their memory. benchmarks/soak.py is the long one."""

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
"""A board that forgets pages after a second, so that a few seconds see many come and go; else what `equipoise board` is."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat(tmp_path: Path) -> None:
    """After a warm-up the training may grow by 10 MB, and the board by 40, about eight pages that nobody looks at yet.

    At a page a second, boards that kept their pages would pass that by far in an hour, and in these seconds nearly; the
    training measures every step.
    """
    samples = list(soak.soak(tmp_path, 20.0, every=0.5, pause=0.005, board=("-c", SHORT)))
    late = [s for s in samples if s.seconds > 8]
    assert len(late) >= 3
    assert late[-1].steps > late[0].steps, "it trains"
    assert late[-1].views > late[0].views + 3
    for memory, most in (("trainer", 10.0), ("board", 40.0)):
        seen = [getattr(s, memory) for s in late]
        half = len(seen) // 2
        assert min(seen[half:]) - max(seen[: half + 1]) < most, seen
