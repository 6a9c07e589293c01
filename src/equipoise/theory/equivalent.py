"""The setting of another optimizer with the same memory and the same norms.

Two numbers, lr and weight decay, can keep two things:

- the memory: the share of the weights that decay removes in a step, so that a batch is forgotten as fast. It also
  fixes how far a scale-invariant weight turns within a timescale that is longer than momentum
- the norm at which weights settle in a random walk. Without decay: how fast the norm grows, so how far weights go

The rotation of a single step then follows from momentum alone: averages over more steps turn less in each.
"""

from __future__ import annotations

import math

from equipoise import _check
from equipoise.theory.directions import Shape
from equipoise.theory.dynamics import Dynamics

TINY = 1e-7
"""Share of a step's decay that stands for none: norms are compared in this limit."""


def equivalent(
    source: Dynamics, target: Dynamics, shape: Shape | int, *, lr: float, weight_decay: float, grad_norm: float = 1.0
) -> tuple[float, float]:
    """Learning rate and weight decay with which `target` has the memory and the norms that `source` has.

    Args:
        source: the optimizer whose setting is known.
        target: the other one.
        shape: of the tensor, or how many weights a neuron has.
        lr: of the source.
        weight_decay: of the source; 0 stays 0.
        grad_norm: g̃, root mean square gradient norm at unit weight norm, where one of both is SGDM.

    >>> adamw, lion = Dynamics("adamw"), Dynamics("lion")
    >>> lr, weight_decay = equivalent(adamw, lion, 1024, lr=1e-3, weight_decay=0.1)
    >>> round(lr * weight_decay, 9)
    0.0001
    """
    for name, one in (("source", source), ("target", target)):
        if not one.known or one.optimizer == "adam_l2" or one.move != "decay" or one.decay == "cautious":
            raise ValueError(
                f"{name} = {one.optimizer!r} with move {one.move!r} and decay {one.decay!r}: must be an optimizer that "
                "theory knows, whose decay takes a share of the weights and whose norms are free to settle"
            )
    eta = _check.number("lr", lr, low=0, open_low=True)
    lam = _check.number("weight_decay", weight_decay, low=0)
    share = float(source.decay_share(eta, lam))
    if share >= 1:
        raise ValueError(f"lr·weight_decay: must take less than the whole weight in a step, not {share:.3g}")
    taken = share or TINY
    wanted = source.stationary(shape, lr=eta, weight_decay=decay_for(source, eta, taken), grad_norm=grad_norm).norm
    power = 0.5 if target.by_gradient else 1.0  # of lr in the norm, at the same memory
    for _ in range(50):
        norm = target.stationary(shape, lr=eta, weight_decay=decay_for(target, eta, taken), grad_norm=grad_norm).norm
        eta *= (wanted / norm) ** (1 / power)
        if abs(wanted / norm - 1) < 1e-12:
            break
    return eta, decay_for(target, eta, share)


def decay_for(dynamics: Dynamics, lr: float, share: float) -> float:
    """The weight decay that removes that share of the weights in a step, in the long run.

    >>> round(decay_for(Dynamics("sgdm"), 0.1, 1e-3), 6)
    0.001
    """
    if share == 0:
        return 0.0
    if dynamics.coupled and dynamics.optimizer == "sgdm":
        return -math.expm1(math.log1p(-share) * (1 - dynamics.betas[0])) / lr
    return share / float(dynamics.decay_share(lr, 1.0))
