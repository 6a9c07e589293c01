"""The table of an audit: tensor × what is said × what is done, equal rows folded; as text, HTML and data."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.auditing.behaviour import Behaviour, Estimate
from equipoise.auditing.record import Track
from equipoise.auditing.said import does_text, said_text
from equipoise.finding import Finding
from equipoise.planner.show import render_findings


@dataclass(frozen=True)
class Row:
    """Tensors of which the optimizer says and does the same.

    Attributes:
        tensors: their names.
        says: what the groups say.
        does: what was inferred; of several tensors, of the first.
        rule: what is done, in words.
        lr: rate over what is said, largest deviation of them; NaN where it has no meaning.
        lr_error: its standard error.
        weight_decay: as inferred, in the terms of `decay`.
        weight_decay_error: its standard error.
        decay: kind of decay: "", "decoupled", "independent", "coupled", "masked".
        factors: averaging factors by name.
        factor_errors: and their standard errors.
        lost: share of the update that rounding takes.
        unexplained: share of the step that is left, the largest of them.
        findings: codes that were raised on them.
    """

    tensors: tuple[str, ...]
    says: str
    does: str
    rule: str
    lr: float
    lr_error: float
    weight_decay: float
    weight_decay_error: float
    decay: str
    factors: dict[str, float]
    factor_errors: dict[str, float]
    lost: float
    unexplained: float
    findings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON, where NaN and infinity are null."""
        return {k: _plain(v) for k, v in asdict(self).items()}


def folded(found: Sequence[tuple[Track, Behaviour, tuple[str, ...]]]) -> list[Row]:
    """Rows of equal tensors together, those with findings first.

    Args:
        found: tensors, what was inferred of them, and codes of findings.
    """
    kinds: dict[Any, list[tuple[Track, Behaviour]]] = {}
    for track, did, codes in found:
        key = (said_text(track) if track.said else "", did.word, did.kind, codes, _round(did))
        kinds.setdefault(key, []).append((track, did))
    rows = []
    for (says, _, _, codes, _), members in kinds.items():
        track, did = members[0]
        names = tuple(t.name for t, _ in members)
        does = does_text(track, did) if track.said else did.word
        every = [d for _, d in members]
        lr = max((d.lr for d in every), key=lambda v: abs(v.value - 1) if math.isfinite(v.value) else -1)
        rows.append(
            Row(
                names,
                says,
                does,
                did.word,
                lr.value,
                lr.error,
                did.decay.value,
                did.decay.error,
                did.kind,
                {k: v.value for k, v in did.factors.items()},
                {k: v.error for k, v in did.factors.items()},
                max(d.lost for d in every),
                max(d.unexplained for d in every),
                codes,
            )
        )
    return sorted(rows, key=lambda r: not r.findings)


def _round(did: Behaviour) -> tuple[str, ...]:
    def short(v: Estimate, digits: int = 2) -> str:
        if not math.isfinite(v.value) or abs(v.value) < 1e-9:
            return ""
        return f"{v.value:.{digits}g}"

    factors = tuple(f"{v.value:.2f}" if math.isfinite(v.error) else "" for v in did.factors.values())
    return (short(did.lr) if did.candidate and not did.candidate.by_rows else "",
            short(did.decay) if did.kind else "", *factors)  # fmt: skip


def rendered(title: str, rows: Sequence[Row], findings: Sequence[Finding]) -> RenderableType:
    """The audit in the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tensors")
    table.add_column("says")
    table.add_column("does")
    table.add_column("unexplained", justify="right")
    for row in rows:
        style = "yellow" if row.findings else ""
        table.add_row(
            Text(_names(row.tensors)), Text(row.says), Text(row.does, style=style), Text(f"{row.unexplained:.1g}")
        )
    parts: list[RenderableType] = [Text(title, style="bold"), *([table] if rows else [])]
    if findings:
        parts.append(render_findings(findings))
    else:
        parts.append(Text("No findings: it does what it says.", style="green"))
    return Group(*parts)


def _names(names: Sequence[str], most: int = 2) -> str:
    return "\n".join([*names[:most], *([f"and {len(names) - most} more"] if len(names) > most else [])])


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid #8884;
  overflow-wrap: anywhere }}
td.number {{ text-align: right; white-space: nowrap }}
.error {{ color: light-dark(#b00020, #ff8a80) }} .warning {{ color: light-dark(#8a5a00, #ffcc66) }}
.info {{ color: light-dark(#0b5c8a, #7cc7f2) }}
summary {{ cursor: pointer }} dl {{ margin: .3rem 0 1rem }} dd {{ margin: 0 0 0 1rem }}
.wide {{ overflow-x: auto }}
</style><h1>{title}</h1>{findings}<h2>Tensors</h2><div class="wide"><table>
<tr><th>tensors</th><th>says</th><th>does</th><th>unexplained</th></tr>{rows}</table></div></html>
"""


def page(title: str, rows: Sequence[Row], findings: Sequence[Finding]) -> str:
    """The audit as one HTML page."""
    e = html.escape

    def names(row: Row) -> str:
        shown = "<br>".join(map(e, row.tensors[:2]))
        if len(row.tensors) <= 2:
            return shown
        rest = "<br>".join(map(e, row.tensors[2:]))
        return f"{shown}<details><summary>and {len(row.tensors) - 2} more</summary>{rest}</details>"

    body = "".join(
        f'<tr><td>{names(r)}</td><td>{e(r.says)}</td><td class="{"warning" if r.findings else ""}">{e(r.does)}</td>'
        f'<td class="number">{r.unexplained:.1g}</td></tr>'
        for r in rows
    )
    listed = "".join(
        f'<dl><dt class="{f.severity}"><b>{e(f.severity)}</b> {e(f.code)} · {e(f.where)}</dt><dd>{e(f.evidence)}</dd>'
        f"<dd>Expected: {e(f.expected)}</dd><dd>{e(f.advice)}</dd></dl>"
        for f in findings
    )
    return PAGE.format(
        title=e(title), rows=body, findings="<h2>Findings</h2>" + (listed or "<p>None: it does what it says.</p>")
    )


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
