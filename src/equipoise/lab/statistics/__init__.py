"""How the lab decides a claim: sequential intervals, and checks of what a claim needs.

Comes in: measurements by seed. Goes out: an interval, and whether the claim is decided. Read `sequential` (the
interval), `rounds` (more seeds until it is decided), `check` (whether a claim was tested at all), `student` (the
distribution).
"""

from equipoise.lab.statistics.check import Check
from equipoise.lab.statistics.sequential import ERROR, LOOKS, decide, margin, next_look

__all__ = ["ERROR", "LOOKS", "Check", "decide", "margin", "next_look"]
