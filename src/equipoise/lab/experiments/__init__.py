"""The experiments, one file each, and how they are run."""

from equipoise.lab.experiments.base import PRESETS, Done, Experiment, Outcome, catalogue, find

__all__ = ["PRESETS", "Done", "Experiment", "Outcome", "catalogue", "find"]
