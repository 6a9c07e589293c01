"""Tests mirror the source: tests/optim/engine/test_chunks.py tests equipoise/optim/engine/chunks.py.

Helpers are modules without `test_` in their names, imported as `tests.optim.table`. What tests a whole package or the
project has a name of its own: `fuzz` has random inputs, `test_layout` the house rules.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""
