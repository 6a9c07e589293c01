"""What the lab needs besides torch is imported when it is used."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str = "lab") -> Any:
    """Import a module of an extra, or say how to get it.

    >>> need("math").pi > 3
    True
    >>> need("no_such_module")
    Traceback (most recent call last):
    ModuleNotFoundError: no_such_module is not installed: pip install 'equipoise[lab]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise ModuleNotFoundError(f"{name} is not installed: pip install 'equipoise[{extra}]'", name=name) from None
