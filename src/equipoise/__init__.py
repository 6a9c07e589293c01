"""See, plan and control what learning rate and weight decay really do to every layer."""

from typing import TYPE_CHECKING, Any

from equipoise import _viewer
from equipoise._version import __version__

if TYPE_CHECKING:
    from equipoise import board, geometry, monitor, optim, planner, schedules, theory
    from equipoise.monitor import Run, watch
    from equipoise.optim import (
        SGDM,
        Adam,
        AdamCPR,
        AdamW,
        HyperballAdamW,
        HyperballMuon,
        Lion,
        Muon,
        NormalizedGD,
        RMSProp,
        Rotational,
        RotationalAdamL2,
        RotationalAdamW,
        RotationalLion,
        RotationalMuon,
        RotationalSGDM,
        RotationalSignSGDM,
        SignSGDM,
        SteepestDescent,
        Switch,
        param_groups,
        scale_invariance,
    )
    from equipoise.planner import plan

_MODULES = ("board", "geometry", "monitor", "optim", "planner", "schedules", "theory")
_FROM = {
    "Run": "monitor",
    "plan": "planner",
    "watch": "monitor",
    "SGDM": "optim",
    "Adam": "optim",
    "AdamCPR": "optim",
    "AdamW": "optim",
    "HyperballAdamW": "optim",
    "HyperballMuon": "optim",
    "Lion": "optim",
    "Muon": "optim",
    "NormalizedGD": "optim",
    "RMSProp": "optim",
    "Rotational": "optim",
    "RotationalAdamL2": "optim",
    "RotationalAdamW": "optim",
    "RotationalLion": "optim",
    "RotationalMuon": "optim",
    "RotationalSGDM": "optim",
    "RotationalSignSGDM": "optim",
    "SignSGDM": "optim",
    "SteepestDescent": "optim",
    "Switch": "optim",
    "param_groups": "optim",
    "scale_invariance": "optim",
}

__all__ = [
    "SGDM",
    "Adam",
    "AdamCPR",
    "AdamW",
    "HyperballAdamW",
    "HyperballMuon",
    "Lion",
    "Muon",
    "NormalizedGD",
    "RMSProp",
    "Rotational",
    "RotationalAdamL2",
    "RotationalAdamW",
    "RotationalLion",
    "RotationalMuon",
    "RotationalSGDM",
    "RotationalSignSGDM",
    "Run",
    "SignSGDM",
    "SteepestDescent",
    "Switch",
    "__version__",
    "board",
    "geometry",
    "monitor",
    "optim",
    "param_groups",
    "plan",
    "planner",
    "scale_invariance",
    "schedules",
    "theory",
    "watch",
]


def _show(thing: Any) -> None:
    """Show a plan or a run with the board, which is imported when it is first asked for."""
    from equipoise.board import show

    show(thing)


_viewer.use(_show)


if not TYPE_CHECKING:  # which would take any name for one that is there

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
