"""Test set-up: helpers beside the tests are importable by name, and property tests are deterministic."""

import sys
from pathlib import Path

from hypothesis import settings

for folder in ("theory", "optim", "monitor", "geometry", "board"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
