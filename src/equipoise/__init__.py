"""See, plan and control what learning rate and weight decay really do to every layer."""

from equipoise import theory
from equipoise._version import __version__

__all__ = ["__version__", "theory"]
