"""Optimizers as rule × move, drop-in for `torch.optim`.

A rule turns gradients into a direction (`rules`), a move turns weight and direction into the new weight (`moves`),
and each final class is one of each with hyperparameters under torch's names.

Comes in: parameters with gradients. Goes out: new weights. Read `rules` (Lion's equation and the others), `moves` and
`sphere` (what is done with a direction), `optimizers` and `controlled` (the final classes), `relatives` (single ideas
from papers), `matrices` (Muon, and what else sees a whole matrix), `engine` (how a step runs), `wrap` and `switch`
(round other optimizers), `attention` (a limit on logits), `following` (`eq.rotational`), `model` (parameter groups),
`dynamics_of` (what theory knows of any torch optimizer).
"""

from equipoise.optim.attention import QKClip
from equipoise.optim.controlled import (
    AdamCPR,
    HyperballAdamW,
    RotationalAdamL2,
    RotationalAdamW,
    RotationalLion,
    RotationalSGDM,
    RotationalSignSGDM,
)
from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.following import rotational
from equipoise.optim.matrices.muon import HyperballMuon, Muon, RotationalMuon
from equipoise.optim.matrices.relatives import BrakeMuon, EvenRows, FloorMuon, NorMuon
from equipoise.optim.matrices.steepest_descent import SteepestDescent
from equipoise.optim.model.averaging import WeightAverage
from equipoise.optim.model.folding import fold
from equipoise.optim.model.gains import Gain, Standardized, add_gains, standardize
from equipoise.optim.model.groups import ParamGroups, param_groups
from equipoise.optim.model.invariance import Invariance, TensorInvariance, scale_invariance
from equipoise.optim.model.schedule_free import ScheduleFree
from equipoise.optim.moves import Constrain, Decay, Move
from equipoise.optim.optimizers import SGDM, Adam, AdamW, Lion, NormalizedGD, RMSProp, SignSGDM
from equipoise.optim.relatives.apart import Angular, AngularMuown, MagnitudeDirection, MDAdam, MDMuon
from equipoise.optim.relatives.neurons import AdamP, Balance, GradientRule, Nero, OwnSize, Project
from equipoise.optim.relatives.ratios import LAMB, LARS, Brake, Clip, ClippedSGDM, Floor, LayerRate, Trust
from equipoise.optim.rules import Rule
from equipoise.optim.sphere import Hyperball, Rotate
from equipoise.optim.switch import Switch
from equipoise.optim.wrap import Rotational

__all__ = [
    "LAMB",
    "LARS",
    "SGDM",
    "Adam",
    "AdamCPR",
    "AdamP",
    "AdamW",
    "Angular",
    "AngularMuown",
    "Balance",
    "Brake",
    "BrakeMuon",
    "Clip",
    "ClippedSGDM",
    "Constrain",
    "Decay",
    "EvenRows",
    "Floor",
    "FloorMuon",
    "Gain",
    "GradientRule",
    "Hyperball",
    "HyperballAdamW",
    "HyperballMuon",
    "Invariance",
    "LayerRate",
    "Lion",
    "MDAdam",
    "MDMuon",
    "MagnitudeDirection",
    "Move",
    "Muon",
    "Nero",
    "NorMuon",
    "NormalizedGD",
    "OwnSize",
    "ParamGroups",
    "Project",
    "QKClip",
    "RMSProp",
    "Rotate",
    "Rotational",
    "RotationalAdamL2",
    "RotationalAdamW",
    "RotationalLion",
    "RotationalMuon",
    "RotationalSGDM",
    "RotationalSignSGDM",
    "Rule",
    "RuleOptimizer",
    "ScheduleFree",
    "SignSGDM",
    "Standardized",
    "SteepestDescent",
    "Switch",
    "TensorInvariance",
    "Trust",
    "WeightAverage",
    "add_gains",
    "fold",
    "param_groups",
    "rotational",
    "scale_invariance",
    "standardize",
]
