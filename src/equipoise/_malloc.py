"""Memory of the process."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Give memory that is free back to the system.

    Each thread has room of its own in glibc, which keeps what was freed there: a process that reads a growing run in
    threads grew with every look though nothing was held.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # another system, another library: nothing to do
        return
    trim(0)
