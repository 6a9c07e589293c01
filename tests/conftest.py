"""Test set-up: property tests are deterministic, child processes find `tests`, and nothing leaves the machine."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
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

# Torch 2.6, the oldest that is allowed, has no Muon and none of the parts that a pretended device is made of.
import torch  # noqa: E402  (after the number of threads is set)
import torch.utils.backend_registration  # noqa: E402


def _no_muon(*args: object, **options: object) -> None:
    pytest.skip("torch.optim.Muon came with torch 2.9")


collect_ignore: list[str] = []
if not hasattr(torch.optim, "Muon"):
    torch.optim.Muon = _no_muon  # type: ignore[misc]
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    collect_ignore.append("optim/engine/pretended_device.py")
