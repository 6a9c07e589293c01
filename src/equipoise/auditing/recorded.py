"""The recorded steps of a tensor in float64, as candidates are fitted on them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from equipoise.auditing.candidates import Candidate
from equipoise.auditing.fit import TensorSteps, chosen
from equipoise.auditing.record import Track


def data_of(track: Track, thin: bool = False) -> TensorSteps | None:
    """The steps of a tensor that had a gradient, in float64; None where there are none.

    A tensor whose group changes its rule or averages while it is recorded counts up to there.

    Args:
        track: what was recorded.
        thin: few entries are enough, as for rules of single entries.
    """
    alike = next((i for i, s in enumerate(track.said) if s.dynamics != track.said[0].dynamics), len(track.said))
    keep = [i for i, g in enumerate(track.grads[:alike]) if g is not None and i < len(track.after)]
    if not keep:
        return None
    shape = track.before[keep[0]].shape
    pick = chosen(shape.numel(), track.dtype) if thin else None

    def wide(x: Tensor) -> Tensor:
        x = x.detach() if pick is None or x.shape != shape else x.detach().reshape(-1)[pick.to(x.device)]
        return x.to("cpu", torch.float64)

    grads = torch.stack([wide(track.grads[i]) for i in keep])  # type: ignore[arg-type]
    before, after = (torch.stack([wide(x[i]) for i in keep]) for x in (track.before, track.after))
    start = {k: wide(x) if isinstance(x, Tensor) else x for k, x in track.start.items()}
    norms = torch.tensor([track.grad_norms[i] for i in keep], dtype=torch.float64)
    scale = grads.flatten(1).norm(dim=1) / norms.clamp_min(1e-300)
    lr = torch.tensor([track.said[i].lr for i in keep], dtype=torch.float64)
    whole = track.whole and pick is None
    return TensorSteps(tuple(grads.shape[1:]), grads, before, after - before, lr, start, track.dtype, scale, whole)


class Recorded:
    """The steps of a tensor: few of its entries, and all where a rule needs them."""

    def __init__(self, track: Track, few: TensorSteps) -> None:
        self.track, self.few = track, few
        self.shape = tuple(track.before[0].shape)

    @cached_property
    def all(self) -> TensorSteps:
        """With all entries that were kept."""
        data = self.few if self.few.shape == self.shape else data_of(self.track)
        assert data is not None
        return data

    def of(self, candidate: Candidate) -> TensorSteps:
        """What a candidate is fitted on."""
        return self.all if candidate.by_matrix or candidate.by_rows else self.few
