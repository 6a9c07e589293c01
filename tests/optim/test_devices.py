"""Steps that never wait for their device, as far as a machine without one can show it."""

from typing import Any

import pytest
import torch
from table import ALL, Row

SHAPES = [(40, 30), (30, 40), (300, 257), (7,), (5, 3, 3, 3)]


def stepped(make: Any, steps: int = 3) -> torch.optim.Optimizer:
    """On `meta`, tensors have no numbers: whatever would read one, as a copy to the host does, raises."""
    params = [torch.nn.Parameter(torch.empty(s, device="meta")) for s in SHAPES]
    optimizer = make(params)
    for _ in range(steps):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("row", ALL, ids=str)
def test_no_step_reads_a_number_from_its_device(row: Row) -> None:
    optimizer = stepped(row.build)
    assert all(p.device.type == "meta" for group in optimizer.param_groups for p in group["params"])


def test_reading_one_would_raise() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        float(torch.empty((), device="meta"))
