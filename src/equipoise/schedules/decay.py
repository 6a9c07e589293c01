"""The kinds of weight decay, and conversion between them.

Each step takes a share d_t of the weights, w ← (1 − d_t)w, and the kinds differ in what is multiplied by λ:

| kind | d_t | does the same decay result if the learning rate is scaled? |
|---|---|---|
| "lr" | λη_t | no: it scales too (torch's AdamW) |
| "schedule" | λη_t/η_max | yes: only the shape of the learning rate counts |
| "independent" | λ | yes: the learning rate does not count |
| "corrected" | λη_t²/η_max | no; but the norm that normalised weights settle at keeps its level as η_t falls |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules.base import Schedule, as_schedule, joint_end
from equipoise.theory.directions import BY_LR_MAX, POWERS, share_of_largest

_KINDS = [kind for kind in POWERS if kind != "cautious"]
"""The kinds of decay that follow from lr alone."""


def convert_decay(
    weight_decay: ArrayLike, *, lr: ArrayLike, source: str = "lr", to: str = "lr", lr_max: float | None = None
) -> Array:
    """The weight decay that in kind `to` takes the same share of the weights each step as the given one in `source`.

        λ' · unit_to(t) = λ · unit_source(t),   unit = η, s, 1, ηs,   s = min(1, η/η_max)

    Args:
        weight_decay: λ, a number or one a step.
        lr: η, a number or one a step.
        source: the kind of the given weight decay, one of `theory.DECAYS` but "cautious".
        to: the kind that is wanted. "lr" is what torch's decoupled optimizers multiply.
        lr_max: η_max. Default: the largest lr.

    Raises:
        ValueError: where lr = 0 at a step that shall decay: there only "independent" can say so.

    Reference: [loshchilov2019] (schedule); [defazio2025] (corrected).

    >>> convert_decay(0.1, lr=[1e-3, 5e-4], source="independent").round(6).tolist()
    [100.0, 200.0]
    >>> convert_decay(0.1, lr=[1e-3, 5e-4], source="corrected").tolist()
    [0.1, 0.05]
    """
    T = _check.length(None, lr=lr, weight_decay=weight_decay) if np.ndim(lr) or np.ndim(weight_decay) else 1
    eta = _check.series("lr", lr, T, low=0)
    lam = _check.series("weight_decay", weight_decay, T, low=0)
    top = float(eta.max()) if lr_max is None else _check.number("lr_max", lr_max, low=0, open_low=True)
    return _convert(lam, eta, check_kind("source", source), check_kind("to", to), top, np.arange(1.0, T + 1))


def check_kind(name: str, value: str) -> str:
    """A kind of decay that follows from lr alone."""
    return _check.choice(name, value, _KINDS)


def _convert(lam: Array, eta: Array, source: str, to: str, top: float, t: Array) -> Array:
    (p, q), (p_to, q_to) = POWERS[source], POWERS[to]
    still, power = eta == 0, p + q - p_to - q_to
    bad = still & (lam > 0) & (p + q == 0) & (power < 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(
            f"lr = 0 at step {int(t[i])} with weight_decay = {lam[i]:.6g} of kind {source!r}: must be > 0, as kind "
            f"{to!r} multiplies weight decay by lr; end the lr above 0, or the weight decay at 0 with it"
        )
    top = top or 1.0
    safe = np.where(still, 1.0, eta)
    factor = safe ** (p - p_to) * share_of_largest(safe, top) ** (q - q_to)
    # Near lr = 0 the share s is η/η_max, and what is left of the powers of η says where the factor goes.
    return lam * np.where(still, top ** (q_to - q) if power == 0 else 0.0, factor)


@final
@dataclass(frozen=True, repr=False)
class TorchDecay(Schedule):
    """The `weight_decay` that torch must be given; made by `torch_decay`."""

    weight_decay: Schedule
    lr: Schedule
    kind: str
    lr_max: float | None = None

    name = "torch_decay"

    def __post_init__(self) -> None:
        self._set(
            weight_decay=as_schedule("weight_decay", self.weight_decay),
            lr=as_schedule("lr", self.lr),
            kind=check_kind("kind", self.kind),
        )
        if self.kind in BY_LR_MAX:
            self._set(lr_max=_check.number("lr_max", self.lr_max, low=0, open_low=True))
        elif self.lr_max is not None:
            raise ValueError(f"lr_max = {self.lr_max!r}: must be None for kind {self.kind!r}, which has no use for it")

    def _end(self) -> int | None:
        return joint_end((self.weight_decay, self.lr))

    def _still_from(self) -> int | None:
        return joint_end((self.weight_decay, self.lr), ended=True)

    def _at(self, t: Array) -> Array:
        return _convert(self.weight_decay._at(t), self.lr._at(t), self.kind, "lr", self.lr_max or 0.0, t)


def torch_decay(
    weight_decay: Schedule | float, *, lr: Schedule | float, kind: str, lr_max: float | None = None
) -> Schedule:
    """The curve to write into torch's `weight_decay`, so that lr · weight_decay is the decay of another kind.

    Args:
        weight_decay: λ of the given kind, a schedule or a number.
        lr: the learning rate that torch will use.
        kind: one of `theory.DECAYS` but "cautious".
        lr_max: η_max. Default: `lr.top`.

    >>> from equipoise.schedules import linear
    >>> torch_decay(0.1, lr=linear(4, peak=1e-3), kind="corrected", lr_max=1e-3).values().round(6).tolist()
    [0.075, 0.05, 0.025, 0.0]
    """
    curve = as_schedule("lr", lr)
    if check_kind("kind", kind) not in BY_LR_MAX:
        lr_max = None
    elif lr_max is None:
        lr_max = curve.top or 1.0  # an lr of 0 throughout decays nothing at any η_max
    return TorchDecay(as_schedule("weight_decay", weight_decay), curve, kind, lr_max)
