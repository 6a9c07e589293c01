"""DTensor parameters give the unsharded result, with two real gloo ranks: reductions are over the whole row."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_sharded_is_unsharded(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    script = Path(__file__).with_name("sharded_ranks.py")
    ranks = [subprocess.Popen([sys.executable, script, str(rank), port, tmp_path]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    assert [p.read_text() for p in sorted(tmp_path.glob("rank*.txt"))] == ["", ""]
