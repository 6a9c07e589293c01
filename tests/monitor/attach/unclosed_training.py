"""A program that trains a watched model, and ends without closing the watch.

python unclosed_training.py FOLDER STEPS ENDING

It says "trained" when all steps are taken and logged. Endings: what is done then, by name in `ENDINGS`.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from tests.monitor.loops import network, train
from torch.optim import SGD

import equipoise as eq

FOLDER, STEPS, ENDING = "", 0, ""


def trained() -> eq.monitor.Watch:
    """A watch that has seen all steps."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = eq.watch(model, optimizer, FOLDER)
    train(model, optimizer, STEPS, lambda step, loss: watch.log(loss=loss, number=step + 1))
    print("trained", flush=True)
    return watch


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def raises() -> None:
    raise ValueError("no more")


def raises_exit(*code: object) -> None:
    raise SystemExit(*code)


def caught() -> None:
    """An exit that is caught, after which training goes on."""
    try:
        sys.exit(1)
    except SystemExit:
        HELD.log(after=1.0)


def closes_in_finally() -> None:
    try:
        raises()
    finally:
        HELD.close()


def closes_while_another_error_is_handled() -> None:
    """A second attempt, inside the handler of the first one's error."""
    global FOLDER
    HELD.close()
    FOLDER += "/second"
    try:
        raises()
    except ValueError:
        trained().close()


ENDINGS: dict[str, Callable[[], object]] = {
    "end": lambda: None,
    "interrupt": interrupted,
    "terminate": terminated,
    "raise": raises,
    "exit 0": lambda: sys.exit(0),
    "exit 1": lambda: sys.exit(1),
    "exit words": lambda: sys.exit("no more"),
    "quit 1": lambda: exit(1),
    "exit inside": lambda: raises_exit(1),
    "caught": caught,
    "finally": closes_in_finally,
    "second": closes_while_another_error_is_handled,
    "pause": lambda: time.sleep(60),
    "os._exit": lambda: (time.sleep(0.5), os._exit(0)),
}


def in_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


if __name__ == "__main__":
    FOLDER, STEPS, ENDING = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if ENDING == "garbage":
        trained()
        time.sleep(0.5)  # while the thread that writes makes the last rows, it holds the tensors
        gc.collect()
        print("collected", flush=True)
        time.sleep(60)
    elif ENDING == "own handler":
        signal.signal(signal.SIGTERM, lambda *_: (print("mine", flush=True), HELD.close("finished"), os._exit(3)))
        HELD = trained()
        terminated()
    elif ENDING == "child terminated":  # a fork inherits the listener, and ends at once without touching the run
        HELD = trained()
        if (pid := os.fork()) == 0:
            terminated()
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
        HELD.log(after=1.0)
    elif ENDING.startswith("script"):  # the statement that ends the script stands in it, as in a short one
        HELD = trained()
        if ENDING == "script raises 1":
            raise SystemExit(1)
        if ENDING == "script raises words":
            raise SystemExit(f"no more than {STEPS}")
        if ENDING == "script raises 0":
            raise SystemExit(0)
        if ENDING == "script raises nothing":
            raise SystemExit
        if ENDING == "script raises computed":
            raise SystemExit(int(STEPS < 0))
        if ENDING == "script catches":
            with contextlib.suppress(SystemExit):
                raise SystemExit(1)
    elif ENDING.startswith("local"):  # the watch is a variable of a function

        def main() -> int:
            watch = trained()
            if ENDING == "local exit":
                raise SystemExit(2)
            if ENDING == "local raise":
                raises()
            return watch.step - STEPS

        raise SystemExit(main())
    elif ENDING == "thread":
        kept = []
        in_thread(lambda: (kept.append(trained()), raises()))
    elif ENDING == "other thread":
        HELD = trained()
        in_thread(raises)
    elif ENDING.startswith("child"):
        _, method, how = ENDING.split()
        context = multiprocessing.get_context(method)

        def child() -> None:
            global HELD
            HELD = trained()
            ENDINGS[how]()

        process = context.Process(target=child)  # type: ignore[attr-defined]
        process.start()
        process.join()
    else:
        HELD = trained()
        ENDINGS[ENDING]()
