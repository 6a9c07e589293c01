"""A short soak: a watched training and a live board hold their memory. The long one is benchmarks/soak.py."""

import gc
import statistics
import sys
import warnings
from pathlib import Path

import pytest
import soak

SHORT = """
import sys
from equipoise.board import server
server.UNUSED = 1
server.serve(sys.argv[1], port=0, started=lambda board: print(board.url, flush=True), alone=True)
"""
"""What `equipoise board` is, but that it forgets pages after a second: many come and go in a few."""


VIEWS, STEPS = 40, 4000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat(tmp_path: Path) -> None:
    """From the first to the last third after a warm-up: 8 MB more at most, and for the board 2.5 for each view besides.

    The board has warmed up when each of its threads has made pages: after some fourteen views. How long it takes is not
    asked, but for an end.

    A board that keeps its pages grows by 5 to 7 MB a view, and fails.
    """
    with warnings.catch_warnings():  # Bokeh's client leaves its sockets to the collector, whenever that comes
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list[soak.Sample]()
        for sample in soak.soak(tmp_path, 600.0, every=0.2, pause=0.001, board=("-c", SHORT)):
            samples.append(sample)
            if sample.views >= VIEWS and sample.steps >= STEPS:
                break
        gc.collect()
    late = [s for s in samples if s.steps > STEPS / 8 and s.views > 14]
    third = len(late) // 3
    assert third, "too slow to say anything"
    first, last = late[:third], late[-third:]

    def grown(what: str) -> float:
        return statistics.mean(getattr(s, what) for s in last) - statistics.mean(getattr(s, what) for s in first)

    assert grown("steps") > 0, "it trains"
    assert grown("trainer") < 8, late
    assert grown("board") < 8 + 2.5 * grown("views"), late
