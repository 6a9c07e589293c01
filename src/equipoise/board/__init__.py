"""Runs and plans as pages: one self-contained HTML file, or a live page in the browser.

- `report` writes runs, `write_plan` a plan, as one file.
- `serve` shows the runs of a directory while they are written.
- `show` implements `Plan.show` and `Run.show`.

Comes in: runs and plans. Goes out: pages. Read `gather` (what a page reads of a run), `pages` (what it draws), `page`
and `files` (one HTML file), `listing` and `server` (the directory), `live` (how often an open page looks for news).
Beside them: `predict` (forecasts), `mirror` (runs at an address), `knobs`, `words`, `style`.
"""

from equipoise.board.files import plan_html, report, report_html, show, write_plan
from equipoise.board.server import Board, serve

__all__ = ["Board", "plan_html", "report", "report_html", "serve", "show", "write_plan"]
