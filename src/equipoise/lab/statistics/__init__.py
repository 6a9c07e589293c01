"""How the lab decides: intervals that may be looked at several times, and checks of what a statement needs."""

from equipoise.lab.statistics.check import Check
from equipoise.lab.statistics.sequential import ERROR, LOOKS, decide, margin, next_look

__all__ = ["ERROR", "LOOKS", "Check", "decide", "margin", "next_look"]
