"""Norms, dual norms, dualize and the polar factor: which direction is steepest depends on how length is measured.

- `named("spectral")`, `Lp`, `RMS`, `Operator`: norms with `norm`, `dual`, `dualize`, `project`, `step`.
- `Scaled`, `Flat`, `Positions`, `Heads`, `MaxOver` (the modular norm), `SumOver`: norms made of norms.
- `polar`: UVᵀ by products alone, in batches of up to `chunk` entries, the engine of Muon. `optimal`: its coefficients.
- `sharpness`, `induced_norm`: norms without a closed form, estimated.

Comes in: gradients or matrices. Goes out: their length in a norm, and the steepest direction in it. Read `norms` (what
a norm is, and the plain ones), `matrix` (operator norms), `combine` (norms made of norms), `names`; then `polar_factor`
with `coefficients` and `_iterate` (how UVᵀ is computed); `numeric` (norms that are estimated).
"""

from equipoise.geometry._iterate import chunk
from equipoise.geometry.coefficients import MUON, minimax, optimal, steps_for, worst_error
from equipoise.geometry.combine import Flat, Heads, MaxOver, Positions, Scaled, SumOver
from equipoise.geometry.matrix import Operator
from equipoise.geometry.names import NAMES, named
from equipoise.geometry.norms import RMS, Lp, Norm, frobenius
from equipoise.geometry.numeric import induced_norm, sharpness
from equipoise.geometry.polar_factor import polar

__all__ = [
    "MUON",
    "NAMES",
    "RMS",
    "Flat",
    "Heads",
    "Lp",
    "MaxOver",
    "Norm",
    "Operator",
    "Positions",
    "Scaled",
    "SumOver",
    "chunk",
    "frobenius",
    "induced_norm",
    "minimax",
    "named",
    "optimal",
    "polar",
    "sharpness",
    "steps_for",
    "worst_error",
]
