"""See, plan and control what learning rate and weight decay really do to every layer."""

from typing import TYPE_CHECKING, Any

from equipoise._version import __version__

if TYPE_CHECKING:
    from equipoise import planner, schedules, theory
    from equipoise.planner import plan

__all__ = ["__version__", "plan", "planner", "schedules", "theory"]

_MODULES = ("planner", "schedules", "theory")
_FROM = {"plan": "planner"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that a command which needs no torch does not pay for it."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"equipoise.{name}")
    if name in _FROM:
        return getattr(importlib.import_module(f"equipoise.{_FROM[name]}"), name)
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
