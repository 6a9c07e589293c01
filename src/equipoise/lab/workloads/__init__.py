"""Short tasks with reference sweeps, to measure what a setting costs.

Comes in: the name of a workload. Goes out: stored trials, and the regret of each policy. Read `base` and `catalogue`
(the tasks), `sweep` (what is tried, in stages), `run` and `store`, then `policies`, `regret` and `payoff` (the page).
What plans and suggestions quote: `follow` (advice that was followed), `twins` and `duels` (optimizers), `suggested`,
with `plans` (a trial's plan) and `floors` (baselines). `show` is the terminal.
"""

from equipoise.lab.workloads.base import HALVES, KINDS, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.policies import POLICIES, Policy
from equipoise.lab.workloads.regret import Regret, regrets
from equipoise.lab.workloads.store import StoredTrial
from equipoise.lab.workloads.sweep import STAGES, best, planned
from equipoise.lab.workloads.twins import TWINS

__all__ = [
    "HALVES",
    "KINDS",
    "POLICIES",
    "STAGES",
    "TWINS",
    "WORKLOADS",
    "Policy",
    "Regret",
    "StoredTrial",
    "Workload",
    "best",
    "planned",
    "regrets",
]
