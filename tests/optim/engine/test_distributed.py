"""DTensor parameters give the unsharded result, with two real gloo ranks: reductions are over the whole row."""

from pathlib import Path

import pytest
import torch.distributed as dist
from tests import forked


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_sharded_is_unsharded(tmp_path: Path) -> None:
    codes, said = forked.ranks(Path(__file__).with_name("sharded_ranks.py"), tmp_path)
    assert codes == [0, 0], said
    assert [p.read_text() for p in sorted(tmp_path.glob("rank*.txt"))] == ["", ""]
