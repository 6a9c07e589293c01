"""Searches for hyperparameters on Optuna, in coordinates whose axes hardly interact.

Comes in: a function that trains, and a space (a suggestion of `eq.suggest`, or ranges by name). Goes out: a `Tuned`,
and a study that Optuna's tools read. Read `space` (coordinates), `trial` (what the function gets), `search` (the loop).
"""

from equipoise.tuning.search import Tuned, tune
from equipoise.tuning.space import Around, Ranges
from equipoise.tuning.trial import StopTrial, Trial

__all__ = ["Around", "Ranges", "StopTrial", "Trial", "Tuned", "tune"]
