"""A process that starts writers and kills them with SIGKILL at random moments, and says what they had handed over.

Arguments: directory, kills, seed. Prints one JSON line a life: where it began, and each row's step and its age in
seconds at the kill.
"""

import json
import os
import random
import signal
import sys
import time

from tests.monitor.store.example_runs import LAYOUT

from equipoise.monitor import RunWriter


def write_until_killed(path: str, session: int, begin: int, out: int) -> None:
    """Rows as fast as a fast training loop, each handed over before it is told."""
    writer = RunWriter(path, layouts=[LAYOUT], resume=True)
    step = begin
    while True:
        writer.append(step, [step, session, step * session])
        os.write(out, f"{step} {time.monotonic()}\n".encode())
        step += 1
        time.sleep(0.001)


def main() -> None:
    path, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    begin = 1
    for session in range(1, kills + 1):
        inlet, outlet = os.pipe()
        os.set_blocking(outlet, False)  # an impossible block here would only lose what we are told
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(path, session, begin, outlet)
            finally:
                os._exit(1)
        os.close(outlet)
        time.sleep(chance.uniform(0.05, 0.9))
        os.kill(child, signal.SIGKILL)
        killed = time.monotonic()
        _, status = os.waitpid(child, 0)
        told = []
        with os.fdopen(inlet) as lines:
            for line in lines:
                if line.endswith("\n"):
                    step, when = line.split()
                    told.append([int(step), killed - float(when)])
        print(json.dumps({"begin": begin, "told": told, "signal": os.WTERMSIG(status)}), flush=True)
        # As from a checkpoint: somewhat before the end.
        begin = max(1, (told[-1][0] if told else begin) - chance.randrange(200))


if __name__ == "__main__":
    main()
