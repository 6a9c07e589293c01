"""The experiments of the lab: one file each, in a folder by what it is about.

Comes in: a preset. Goes out: trials to train, then a table, claims and a figure from what was measured of them.

Read `base` (what an experiment must say), then one experiment; `equilibrium/random_walk.py` is the simplest. Folders:
`equilibrium`, `balance`, `hyperparameters`, `memory`, `adam`, `matrices`, `convex`, and `shared` for what they have in
common. A new file with a subclass of `Experiment` is found by itself. `equipoise.lab.train` runs them.
"""

from equipoise.lab.experiments.base import PRESETS, Done, Experiment, Outcome, catalogue, find

__all__ = ["PRESETS", "Done", "Experiment", "Outcome", "catalogue", "find"]
