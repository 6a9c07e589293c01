"""Train a trial and die by SIGKILL in the middle: python killed_training.py CONFIG PATH STEP."""

import os
import signal
import sys

from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial


def die(step: int, _: float) -> None:
    if step >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    train(Trial.from_json(sys.argv[1]), sys.argv[2], save=0.0, progress=die)
