"""Test set-up: helpers are importable by name, property tests are deterministic, and nothing leaves the machine."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core: threads in them would fight; before torch is there
    os.environ.setdefault("OMP_NUM_THREADS", "1")

for folder in ("theory", "optim", "monitor", "geometry", "board", "drills", "lab/workloads"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # planted faults
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# These tools read their settings once in a process, so they are set before anything imports them.
KEPT = tempfile.mkdtemp(prefix="equipoise-tests-")
atexit.register(shutil.rmtree, KEPT, ignore_errors=True)
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TRACKIO_DIR": f"{KEPT}/trackio",
    "WANDB_DIR": KEPT,
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
