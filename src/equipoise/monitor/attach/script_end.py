"""How the script of this process ended, told by the last instruction that it ran.

A `SystemExit` that nobody catches is gone before `atexit` runs, and its code with it. What is left is the frame of the
script: it ended at a return, or at the instruction that the exception came out of.
"""

from __future__ import annotations

import dis
import sys
import threading
from types import CodeType, FrameType


def script_frame() -> FrameType | None:
    """The frame of the script that is running, seen from the main thread; None where there is none."""
    if threading.current_thread() is not threading.main_thread() or hasattr(sys, "ps1"):
        return None
    found = None
    for frame in _stack():
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            found = frame
    return found


def left_with_code(frame: FrameType | None) -> bool:
    """Whether a script was left by an exception, other than one that says that all is well.

    A code that the script computes itself, as in `raise SystemExit(main())`, is not known, and counts as well.

    Args:
        frame: of the script; None, or one that is still running, was not left.
    """
    if frame is None or threading.current_thread() is not threading.main_thread() or frame in _stack():
        return False
    return ends_with_code(frame.f_code, frame.f_lasti)


def ends_with_code(code: CodeType, last: int) -> bool:
    """As `left_with_code`.

    Args:
        code: of the script.
        last: offset of the last instruction that it ran.

    >>> def at_end(script):
    ...     code = compile(script, "script", "exec")
    ...     return ends_with_code(code, list(dis.get_instructions(code))[-1].offset)
    >>> [at_end(s) for s in ("pass", "raise SystemExit(1)", "raise SystemExit('no data')", "raise SystemExit(0)")]
    [False, True, True, False]
    """
    before: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.offset >= last:
            break
        before.append(one)
    name = dis.opname[code.co_code[last]]
    if name.startswith("RETURN"):
        return False
    if name != "RAISE_VARARGS":
        return True  # it came out of something that the script called
    given = next((one for one in reversed(before) if "CALL" not in one.opname and one.opname != "CACHE"), None)
    if given is None or not given.opname.startswith("LOAD_"):
        return given is not None and given.opname in ("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE")
    return given.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and bool(given.argval)


def _stack() -> list[FrameType]:
    found, frame = [], sys._getframe(1)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found
