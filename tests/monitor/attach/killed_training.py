"""A process that trains a watched model, says each step that it has taken, and then does nothing until it is killed.

python killed_training.py FOLDER STEPS
"""

import sys
import time

from tests.monitor.loops import network, train
from torch.optim import SGD

import equipoise as eq

if __name__ == "__main__":
    folder, steps = sys.argv[1], int(sys.argv[2])
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, folder, every=1) as watch:

        def after(step: int, loss: object) -> None:
            watch.log(loss=loss)  # type: ignore[arg-type]
            time.sleep(0.05)
            print(step + 1, flush=True)

        train(model, optimizer, steps, after)
        time.sleep(60)
