"""Short tasks with reference sweeps, to measure what a setting costs."""

from equipoise.lab.workloads.base import HALVES, KINDS, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.policies import POLICIES, Policy
from equipoise.lab.workloads.regret import Regret, regrets
from equipoise.lab.workloads.store import StoredTrial
from equipoise.lab.workloads.sweep import STAGES, best, planned

__all__ = [
    "HALVES",
    "KINDS",
    "POLICIES",
    "STAGES",
    "WORKLOADS",
    "Policy",
    "Regret",
    "StoredTrial",
    "Workload",
    "best",
    "planned",
    "regrets",
]
