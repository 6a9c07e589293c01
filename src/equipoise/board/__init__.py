"""Runs and plans as pages: one self-contained HTML file, or a live page in the browser.

- `report` writes runs, `write_plan` a plan, as one file.
- `serve` shows the runs of a directory while they are written.
- `show` implements `Plan.show` and `Run.show`.
"""

from equipoise.board.files import plan_html, report, report_html, show, write_plan
from equipoise.board.server import Board, serve

__all__ = ["Board", "plan_html", "report", "report_html", "serve", "show", "write_plan"]
