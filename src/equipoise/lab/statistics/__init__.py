"""How the lab decides a claim: sequential intervals, and checks of what a claim needs."""

from equipoise.lab.statistics.check import Check
from equipoise.lab.statistics.sequential import ERROR, LOOKS, decide, margin, next_look

__all__ = ["ERROR", "LOOKS", "Check", "decide", "margin", "next_look"]
