"""Test set-up: property tests are deterministic, child processes find `tests`, and nothing leaves the machine."""

import atexit
import gc
import os
import shutil
import tempfile

import setuptools  # noqa: F401  (before something imports distutils: torch's compiler fails on the warning about that)
from hypothesis import settings

from tests import ROOT

if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core: threads in them would fight; before torch is there
    os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection, which would go through all of them each time."""
    gc.collect()
    gc.freeze()


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
