"""Handwritten digits of scikit-learn: 1797 images of 8×8, in the package itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise._extras import need, require
from equipoise.lab.data.base import Data, split

FILE = "datasets/data/digits.csv.gz"
"""Where scikit-learn keeps them."""


def digits(*, test: float = 0.2, seed: int = 0) -> Data:
    """Images [1, 8, 8] of mean 0 and standard deviation 1, in ten classes.

    Args:
        test: share of the images that is tested on.
        seed: which ones.
    """
    pixels, classes = _read()
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(classes).to(torch.uint8)
    return split("digits", "classes", images, labels, test=test, seed=seed, outputs=10)


def _read() -> tuple[NDArray[Any], NDArray[Any]]:
    """Pixels and classes from the file itself: importing scikit-learn takes longer than many a trial."""
    require("sklearn", "lab")
    spec = importlib.util.find_spec("sklearn")
    for place in (spec and spec.submodule_search_locations) or ():
        if (file := Path(place, FILE)).is_file():
            numbers = np.loadtxt(file, delimiter=",")
            return numbers[:, :-1], numbers[:, -1]
    return need("sklearn.datasets").load_digits(return_X_y=True)
