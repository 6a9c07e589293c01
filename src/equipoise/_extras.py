"""Import optional libraries where they are used. If one is missing, the error says which extra to install."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final


@final
class MissingExtraError(ModuleNotFoundError):
    """A module of an extra is not installed; the message says what to do."""


@contextmanager
def importing(extra: str, *modules: str) -> Iterator[None]:
    """Imports of an extra: where one of its modules is not installed, say how to get it.

    Args:
        extra: name of the extra.
        modules: what it brings; another module that is missing is somebody else's fault, and raises as it is.

    >>> with importing("lab", "no_such_module"):
    ...     import no_such_module
    Traceback (most recent call last):
    equipoise._extras.MissingExtraError: no_such_module is not installed: pip install 'equipoise[lab]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in modules:
            raise
        raise MissingExtraError(f"{name} is not installed: pip install 'equipoise[{extra}]'", name=name) from None


def require(module: str, extra: str) -> None:
    """Say how to get a module that is not installed, without importing one that is."""
    with importing(extra, module):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


def need(module: str, extra: str = "lab") -> Any:
    """Import a module of an extra, or say how to get it.

    >>> need("math").pi > 3
    True
    >>> need("no_such_module.part")
    Traceback (most recent call last):
    equipoise._extras.MissingExtraError: no_such_module is not installed: pip install 'equipoise[lab]'
    """
    with importing(extra, module.partition(".")[0]):
        return importlib.import_module(module)
