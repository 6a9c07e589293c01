"""The loss by position is the mean over the tokens there, and goes the way of all logged numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.lab.models import Gpt
from equipoise.monitor import by_position

EDGES = {"1": (0, 1), "2": (1, 2), "3-4": (2, 4), "5-8": (4, 8), "9-11": (8, 11)}


@pytest.mark.parametrize("masked", [False, True])
def test_means_are_those_of_the_tokens(masked: bool) -> None:
    g = torch.Generator().manual_seed(0)
    losses, mask = torch.rand(5, 11, generator=g), torch.rand(5, 11, generator=g) > 0.5
    losses[~mask & masked] = torch.nan  # what does not count may be anything
    found = by_position(losses, mask if masked else None, name="p")
    assert list(found) == [f"p/{label}" for label in EDGES]
    for label, (start, end) in EDGES.items():
        tokens = losses[:, start:end].numpy().astype(np.float64)
        kept = tokens[mask[:, start:end].numpy()] if masked else tokens
        assert found[f"p/{label}"].item() == pytest.approx(float(kept.mean()), rel=1e-12)


def test_positions_without_a_token_are_not_a_number() -> None:
    mask = torch.tensor([[True, False], [True, False]])
    found = by_position(torch.ones(2, 2), mask)
    assert found["by position/1"] == 1.0
    assert torch.isnan(found["by position/2"])


def test_they_are_logged_beside_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Gpt(11, 8, 1, 16, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with eq.watch(model, optimizer, tmp_path, every=1, quiet=True, strict=True) as watch:
        for _ in range(3):
            x = torch.randint(11, (4, 9))
            losses = torch.nn.functional.cross_entropy(model(x[:, :-1]).mT, x[:, 1:], reduction="none")
            losses.mean().backward()
            optimizer.step()
            watch.log(by_position(losses), loss=losses.mean())
    with eq.Run.open(tmp_path) as run:
        assert run.final is not None
        assert run.final.name == "loss"
        parts = [run.series(f"by position/{label}").values[-1] for label in ("1", "2", "3-4", "5-8")]
        mean = np.average(parts, weights=[1, 1, 2, 4])
        assert mean == pytest.approx(run.series("loss").values[-1], rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "mask", "said"),
    [
        (torch.ones(3), None, "losses has shape (3,)"),
        (torch.ones(0, 4), None, "losses has shape (0, 4)"),
        (torch.ones(2, 4), torch.ones(2, 3), "mask has shape (2, 3)"),
    ],
)
def test_other_shapes_are_refused(losses: torch.Tensor, mask: torch.Tensor | None, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        by_position(losses, mask)
