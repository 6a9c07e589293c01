"""Handwritten digits of scikit-learn: 1797 images of 8×8, in the package itself."""

from __future__ import annotations

import torch

from equipoise._extras import need
from equipoise.lab.data.base import Data, split


def digits(*, test: float = 0.2, seed: int = 0) -> Data:
    """Images [1, 8, 8] of mean 0 and standard deviation 1, in ten classes.

    Args:
        test: share of the images that is tested on.
        seed: which ones.
    """
    x, y = need("sklearn.datasets").load_digits(return_X_y=True)
    images = torch.from_numpy(x).float().view(-1, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    return split("digits", "classes", images, torch.from_numpy(y).to(torch.uint8), test=test, seed=seed, outputs=10)
