"""A program that trains until gradients are infinite, under a progress bar, with logging as Python has it by itself.

python diverging_training.py FOLDER
"""

import sys
from pathlib import Path

import torch
from tests.monitor.loops import network, train
from torch.optim import SGD
from tqdm import tqdm

import equipoise as eq


def diverged(path: Path, **options: object) -> eq.monitor.Watch:
    """A run whose gradients become infinite."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, path, every=1, **options) as watch:  # type: ignore[arg-type]
        train(model, optimizer, 20, lambda step, loss: watch.log(loss=loss))
        with torch.no_grad():
            next(model.parameters()).fill_(float("inf"))
        train(model, optimizer, 20, lambda step, loss: watch.log(loss=loss), first=20)
    return watch


if __name__ == "__main__":
    with tqdm(total=10, mininterval=0) as bar:
        bar.update(3)
        diverged(Path(sys.argv[1]))
