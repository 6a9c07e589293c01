"""How a run ends that is not closed: end of the program, an exception, Ctrl-C, or the end of a notebook cell."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from equipoise.monitor.attach.script_end import left_with_code, script_frame

PATIENCE = 5.0
"""Seconds that a process that is told to end waits for its runs to be closed."""

STATUSES = ("finished", "interrupted", "crashed")
"""How a run may end that says so itself."""


class Closes(Protocol):
    """What is closed when the process ends."""

    def end(self, status: str) -> None:
        """Store what waits, and close.

        Args:
            status: one of `STATUSES`.
        """
        ...


def status_of(error: BaseException | None) -> str:
    """How something ended that an exception came out of, or none.

    >>> [status_of(e) for e in (None, KeyboardInterrupt(), ValueError(), SystemExit(), SystemExit(1))]
    ['finished', 'interrupted', 'crashed', 'finished', 'crashed']
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return "crashed" if error.code else "finished"
    return "finished" if error is None or isinstance(error, GeneratorExit) else "crashed"


class Ending:
    """Closes one thing when the process ends, and knows how what it watched has ended. Does not keep it alive.

    Args:
        thing: what to close.
    """

    def __init__(self, thing: Closes) -> None:
        self._thing = weakref.ref(thing)
        self._pid = os.getpid()
        self._handled = id(sys.exc_info()[1])
        self.how: str | None = None
        """How training ended, if anything was heard of an end since the last step."""
        self.went_on()
        _install()
        _open.append(self)

    @property
    def here(self) -> bool:
        """Whether this is the process that opened it, and not a fork of it."""
        return os.getpid() == self._pid

    def went_on(self) -> None:
        """Training goes on, here and now."""
        self.how = None
        self.moved = True
        self.thread = threading.get_ident()
        self._last = id(getattr(sys, "last_value", None))

    def status(self) -> str:
        """How it ends if it ends now: an exception is on its way, or one was the last that was heard of training."""
        error = sys.exc_info()[1]
        if error is not None and id(error) != self._handled:
            return status_of(error)
        return self.how or ("crashed" if left_with_code(_script) else "finished")

    def over(self) -> None:
        """It was closed."""
        if self in _open:
            _open.remove(self)

    def end(self, status: str | None = None) -> None:
        """The process ends.

        Args:
            status: how, where that is known.
        """
        thing = self._thing()
        if thing is None or not self.here:
            return
        if status is not None:
            thing.end(status)
            return
        # The interpreter leaves the exception that ended the program in sys; a notebook any exception of any cell.
        last = None if _notebook() else getattr(sys, "last_value", None)
        thing.end(self.status() if last is None or id(last) == self._last else status_of(last))


_open: list[Ending] = []
_installed: set[int] = set()
_script: FrameType | None = None
"""The frame of the script that opened the first one."""


def _install() -> None:
    """Listen for ends: once in a process."""
    global _script
    if os.getpid() in _installed:
        return
    if multiprocessing.parent_process() is not None:  # forked ones do not come to atexit
        multiprocessing.util.Finalize(None, _end_all, exitpriority=0)
    if not _installed:
        atexit.register(_end_all)
        _listen_to_exit()
        _listen_to_threads()
        _listen_to_terminate()
        shell = _notebook()
        if shell is not None:
            shell.events.register("post_run_cell", _cell_ended)
        else:
            _script = script_frame()
    _installed.add(os.getpid())


def _end_all(status: str | None = None) -> None:
    for one in reversed(list(_open)):  # a watch closes what it opened before
        one.end(status)


def _note(error: BaseException, concerned: Callable[[Ending], bool]) -> None:
    for one in list(_open):
        if one.here and concerned(one):
            one.how = status_of(error)


def _listen_to_exit() -> None:
    """Know the code that a program exits with: when the interpreter ends, it is nowhere to be found."""

    def hear(code: Any = None) -> None:
        if threading.current_thread() is threading.main_thread():
            _note(SystemExit(code), lambda one: True)

    plain = sys.exit

    def leave(status: Any = None, /) -> Any:
        hear(status)
        plain(status)

    leave.__doc__ = plain.__doc__
    sys.exit = leave
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":
        called = quitter.__call__

        def quit_(self: Any, code: Any = None) -> Any:
            hear(code)
            called(self, code)

        quitter.__call__ = quit_


def _listen_to_threads() -> None:
    """Know of exceptions that end the thread that trains."""
    before = threading.excepthook

    def hear(args: Any, /) -> None:
        if args.exc_value is not None and args.thread is not None:
            _note(args.exc_value, lambda one: one.thread == args.thread.ident)
        before(args)

    threading.excepthook = hear


def _listen_to_terminate() -> None:
    """Close what is open when the process is told to end (SIGTERM), where nobody else listens; then it ends as ever."""

    def hear(number: int, frame: Any) -> None:
        # Not in this thread, which may hold a lock: it waits for a while, and then the process ends in any case.
        closing = threading.Thread(target=_end_all, args=("interrupted",), daemon=True)
        closing.start()
        closing.join(PATIENCE)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    with contextlib.suppress(ValueError):  # another thread than the main one cannot listen
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, hear)


def _notebook() -> Any:
    """IPython's shell, in a notebook or a terminal; None elsewhere."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _cell_ended(result: Any) -> None:
    """A cell of a notebook has run: know how the training in it ended."""
    error = result.error_in_exec or result.error_before_exec
    if error is not None:
        _note(error, lambda one: one.moved)
    for one in _open:
        one.moved = False
