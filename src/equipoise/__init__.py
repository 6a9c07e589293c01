"""See, plan and control what learning rate and weight decay really do to every layer.

Comes in: a model, its torch optimizer, the settings of a run. Goes out: a plan, a watched run, findings, pages. Each
package may import only those before it in this order; read `__init__` of one for its own order of reading:

`theory` (formulas, without torch), `schedules` and `geometry`, `optim` (optimizers as rule × move), `planner` (what a
setting will do), `monitor` (what each layer does while it trains), `auditing` (whether an optimizer does what it says),
`board` (pages), `tuning` (searches), `lab` (experiments), `cli` (the command). `finding` is the type that plans, runs
and audits report in; `sources` are the papers that docstrings cite by key.
"""

from typing import TYPE_CHECKING, Any

from equipoise import _viewer
from equipoise._version import __version__

if TYPE_CHECKING:
    from equipoise import auditing, board, geometry, monitor, optim, planner, schedules, theory, tuning
    from equipoise.auditing import audit
    from equipoise.monitor import Run, watch
    from equipoise.optim import (
        LAMB,
        LARS,
        SGDM,
        Adam,
        AdamCPR,
        AdamP,
        AdamW,
        AngularMuown,
        BrakeMuon,
        ClippedSGDM,
        FloorMuon,
        HyperballAdamW,
        HyperballMuon,
        Lion,
        MDAdam,
        MDMuon,
        Muon,
        Nero,
        NormalizedGD,
        NorMuon,
        QKClip,
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
        rotational,
        scale_invariance,
    )
    from equipoise.planner import plan, suggest
    from equipoise.tuning import tune

_MODULES = ("auditing", "board", "geometry", "monitor", "optim", "planner", "schedules", "theory", "tuning")
_FROM = {
    "Run": "monitor",
    "audit": "auditing",
    "plan": "planner",
    "suggest": "planner",
    "tune": "tuning",
    "watch": "monitor",
    "LAMB": "optim",
    "LARS": "optim",
    "ClippedSGDM": "optim",
    "BrakeMuon": "optim",
    "FloorMuon": "optim",
    "NorMuon": "optim",
    "SGDM": "optim",
    "Adam": "optim",
    "AdamCPR": "optim",
    "AdamW": "optim",
    "QKClip": "optim",
    "Nero": "optim",
    "MDMuon": "optim",
    "MDAdam": "optim",
    "AngularMuown": "optim",
    "AdamP": "optim",
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
    "rotational": "optim",
    "scale_invariance": "optim",
}

__all__ = [
    "LAMB",
    "LARS",
    "SGDM",
    "Adam",
    "AdamCPR",
    "AdamP",
    "AdamW",
    "AngularMuown",
    "BrakeMuon",
    "ClippedSGDM",
    "FloorMuon",
    "HyperballAdamW",
    "HyperballMuon",
    "Lion",
    "MDAdam",
    "MDMuon",
    "Muon",
    "Nero",
    "NorMuon",
    "NormalizedGD",
    "QKClip",
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
    "audit",
    "auditing",
    "board",
    "geometry",
    "monitor",
    "optim",
    "param_groups",
    "plan",
    "planner",
    "rotational",
    "scale_invariance",
    "schedules",
    "suggest",
    "theory",
    "tune",
    "tuning",
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
