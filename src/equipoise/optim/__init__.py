"""Optimizers as rule × move, drop-in for `torch.optim`.

A rule turns gradients into a direction (`rules`), a move turns weight and direction into the new weight (`moves`), and
each final class is one of each with hyperparameters under torch's names.
"""

from equipoise.optim.base import RuleOptimizer
from equipoise.optim.controlled import (
    AdamCPR,
    HyperballAdamW,
    RotationalAdamL2,
    RotationalAdamW,
    RotationalLion,
    RotationalSGDM,
    RotationalSignSGDM,
)
from equipoise.optim.moves import Constrain, Decay, Hyperball, Move, Rotate
from equipoise.optim.optimizers import SGDM, Adam, AdamW, Lion, NormalizedGD, RMSProp, SignSGDM
from equipoise.optim.rules import Rule
from equipoise.optim.wrap import Rotational, Switch

__all__ = [
    "SGDM",
    "Adam",
    "AdamCPR",
    "AdamW",
    "Constrain",
    "Decay",
    "Hyperball",
    "HyperballAdamW",
    "Lion",
    "Move",
    "NormalizedGD",
    "RMSProp",
    "Rotate",
    "Rotational",
    "RotationalAdamL2",
    "RotationalAdamW",
    "RotationalLion",
    "RotationalSGDM",
    "RotationalSignSGDM",
    "Rule",
    "RuleOptimizer",
    "SignSGDM",
    "Switch",
]
