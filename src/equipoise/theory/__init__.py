"""Formulas for norm, rotation and memory of an optimizer, in numpy, without torch.

- `Dynamics`: what an optimizer does to a tensor. It answers all of the questions below.
- `stationary`: where norm and rotation settle. `forecast`: what they do at every step of a run.
- `memory`: what each batch contributes, to the last weights or an average. `design_lr`, `design_weight_decay`,
  `design_average`: schedules and averages for given contributions.
- `equivalent`: the setting of another optimizer with the same memory and norms.
- `distance`: how far weights move from their start.
- `fit_loss`: a law of the loss, for schedules that were not trained.
- `bias_factor`: Adam's bias correction as a schedule.

Comes in: an optimizer's settings, lr and weight decay of each step, the size of a tensor. Goes out: numbers and arrays
over steps. Read `directions` (every optimizer as filter, bend and coupling, every kind of decay), `kernels` and
`_recursions` (what they are computed with), `walk` (where a random walk settles), `trajectory` (every step of a run),
`memory`; then `dynamics`, which answers for one optimizer; `by_name` are the functions that take an optimizer's name.
Beside them: `bias`, `distance`, `divergence`, `equivalent`, `loss_law`, and `advice`, published rules for choosing a
setting.
"""

from equipoise.theory import advice
from equipoise.theory.bias import bias_factor, bias_slope, bias_turning_point, eps_factor, first_step
from equipoise.theory.by_name import forecast, stationary, steps_to_equilibrium
from equipoise.theory.directions import DECAYS, OPTIMIZERS, default_betas
from equipoise.theory.distance import distance, steady_update
from equipoise.theory.divergence import gaussian_kl
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.equivalent import equivalent
from equipoise.theory.loss_law import LossLaw, fit_loss
from equipoise.theory.memory import (
    Memory,
    design_average,
    design_lr,
    design_lr_tied,
    design_weight_decay,
    ema_weights,
    memory,
    travel_bound,
    unroll,
)
from equipoise.theory.trajectory import Forecast, norm_budget, rotation_angle
from equipoise.theory.walk import Stationary, effective_lr, norm_over_time

__all__ = [
    "DECAYS",
    "OPTIMIZERS",
    "Dynamics",
    "Forecast",
    "LossLaw",
    "Memory",
    "Stationary",
    "advice",
    "bias_factor",
    "bias_slope",
    "bias_turning_point",
    "default_betas",
    "design_average",
    "design_lr",
    "design_lr_tied",
    "design_weight_decay",
    "distance",
    "effective_lr",
    "ema_weights",
    "eps_factor",
    "equivalent",
    "first_step",
    "fit_loss",
    "forecast",
    "gaussian_kl",
    "memory",
    "norm_budget",
    "norm_over_time",
    "rotation_angle",
    "stationary",
    "steady_update",
    "steps_to_equilibrium",
    "travel_bound",
    "unroll",
]
