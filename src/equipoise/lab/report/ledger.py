"""The ledger: every statement of the sources, what was measured of it, and whether it holds; from stored outcomes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from equipoise.lab.experiments.base import PRESETS, catalogue
from equipoise.lab.report.claims import NOT_TESTED, Claim, Stat, claim_rows, markdown
from equipoise.lab.statistics import LOOKS, Check
from equipoise.lab.train.run_experiment import OUTCOME
from equipoise.lab.train.trial_store import STORED, TRIALS, keep_trials, read_lines, stored_trials

VERDICTS = ("holds", "holds partly", "does not hold here", "undecided", NOT_TESTED, "not run")
SEEDS = LOOKS[0]
"""A claim measured over fewer seeds is not judged."""

OLDER = (
    "**From an older run**, whose trials are not stored: the numbers are those that it left, and its checks were noted "
    "from its tables."
)

PARTS = {"agrees": "agree", "differs": "differ", "undecided": "undecided", NOT_TESTED: NOT_TESTED}


@final
@dataclass(frozen=True)
class Entry:
    """A statement of a source, with what was measured of it.

    Attributes:
        experiment: that tests it.
        name: of the statement, in its experiment.
        says: what the source says.
        claims: its parts, as measured; none where it was not run.
        made: preset, date and versions of the outcome, and whether its trials are stored.
    """

    experiment: str
    name: str
    says: str
    claims: Sequence[Claim] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """It holds where all parts agree, and partly where some do; one of `VERDICTS`.

        Parts that were not tested count as open: a statement with such parts holds partly at best.

        >>> good = Claim("a/1", "[kosson2024]", "norm", 1.0, Stat(1.0, 0.0, 3))
        >>> poor = Claim("a/2", "[kosson2024]", "norm", 2.0, Stat(1.0, 0.0, 3))
        >>> [Entry("x", "a", "…", parts).verdict for parts in ([good], [good, poor], [poor], [])]
        ['holds', 'holds partly', 'does not hold here', 'not run']
        """
        if not self.claims:
            return "not run"
        found = [claim.verdict for claim in self.claims]
        if "agrees" in found:
            return "holds" if set(found) == {"agrees"} else "holds partly"
        if "differs" in found:
            return "does not hold here"
        return "undecided" if "undecided" in found else NOT_TESTED

    @property
    def parts(self) -> str:
        """How many parts there are, and how many of them agree."""
        found = [claim.verdict for claim in self.claims]
        counts = ", ".join(f"{found.count(v)} {word}" for v, word in PARTS.items() if v in found)
        return counts if len(found) > 1 else "1" if found else "—"

    @property
    def telling(self) -> Claim | None:
        """The part that the verdict hangs on: of those that are least in favour, the one that is least clear."""
        order = {"differs": 0, "undecided": 1, "agrees": 2, NOT_TESTED: 3}
        return min(self.claims, key=lambda c: (order[c.verdict], c.clearness), default=None)

    @property
    def reason(self) -> str:
        """Why parts were not tested: each check that did not pass, as the first part has it, and of how many parts."""
        failed: dict[str, list[Check]] = {}
        for claim in self.claims:
            for check in claim.failed:
                failed.setdefault(check.name, []).append(check)
        more = {name: f" ({len(found)} parts)" if len(found) > 1 else "" for name, found in failed.items()}
        return "; ".join(f"{found[0].reason}{more[name]}" for name, found in failed.items())

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "experiment": self.experiment, "statement": self.name, "says": self.says, "verdict": self.verdict,
            "reason": self.reason,
            "claims": [claim.to_dict() for claim in self.claims], **self.made,
        }  # fmt: skip


def keep(file: Path) -> None:
    """Store an outcome with the package, without what can be made of it, and its trials."""
    content = json.loads(file.read_text(encoding="utf-8"))
    parts = [f"{json.dumps(k)}: {_lines(v)}" for k, v in content.items()]
    STORED.mkdir(exist_ok=True)
    (STORED / f"{content['experiment']}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    keep_trials(content["experiment"], file.parent / TRIALS, STORED)


def _lines(value: Any) -> str:
    """JSON with a line for each element of a list, so that a change is seen where it is."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]"


def outcomes(folder: str | os.PathLike[str] | None = None) -> dict[str, dict[str, Any]]:
    """Stored outcomes by experiment, each of the largest preset that there is.

    Args:
        folder: with `outcome.json` files of one's own, in it or a level below. Default: those of the package.
    """
    if folder is None:
        files = sorted(STORED.glob("*.json"))
    else:
        place = Path(folder)
        if not place.is_dir():
            raise ValueError(f"{place}: must be a directory with outcomes of `equipoise lab run`")
        files = sorted([*place.glob(OUTCOME), *place.glob(f"*/{OUTCOME}")])
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            name, rank = str(content["experiment"]), PRESETS.index(content["preset"])
            counts([Entry(name, key, str(text), *_parts(content, key)) for key, text in _statements(content)])
            _versions(content)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{file}: is no outcome of an experiment ({error})") from None
        if name not in found or rank > PRESETS.index(found[name]["preset"]):
            found[name] = content
    return found


def ledger(folder: str | os.PathLike[str] | None = None) -> list[Entry]:
    """Every statement of every experiment, in the order of the catalogue, then of one's own.

    Args:
        folder: as in `outcomes`.
    """
    have = outcomes(folder)
    for name, content in have.items():
        content["kept"] = folder is not None or is_kept(name, content)
    says = {name: dict(_statements(content)) for name, content in have.items()}
    known = {name: dict(experiment.statements) for name, experiment in catalogue().items()}
    return [
        Entry(experiment, name, text, *_parts(have.get(experiment), name))
        for experiment, statements in (says | known).items()
        for name, text in statements.items()
    ]


def is_kept(name: str, content: Mapping[str, Any]) -> bool:
    """Whether every trial of an outcome of the package is stored with it, so that its verdicts can be made again."""
    return {t["key"] for t in content["trials"]} <= {line["key"] for line in read_lines(stored_trials(name))}


def counts(entries: Sequence[Entry]) -> str:
    """How many statements have which verdict, in words.

    >>> counts([Entry("x", "a", "…"), Entry("x", "b", "…")])
    '2 statements (not run: 2)'
    """
    found = [entry.verdict for entry in entries]
    told = ", ".join(f"{v}: {found.count(v)}" for v in VERDICTS if v in found)
    return f"{len(found)} statements ({told})"


def evidence(entries: Sequence[Entry]) -> str:
    """The ledger as Markdown: a section for each experiment, a row for each statement, with links to pages."""
    parts = [f"{counts(entries)}."]
    for name in dict.fromkeys(e.experiment for e in entries):
        own = [e for e in entries if e.experiment == name]
        made = next((e.made for e in own if e.made), None)
        how = "Not run." if made is None else f"Preset `{made['preset']}`, {made['date']}, {_versions(made)}."
        if made is not None and not made["kept"]:
            how += f" {OLDER}"
        rows = [_row(e) for e in own]
        parts.append(f"## {name}\n\n[Page](lab/{name}.md). {how}\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def _row(entry: Entry) -> dict[str, Any]:
    """A statement as a row: its parts, the number that the verdict hangs on with interval and effect, and why."""
    told = {"measured": "—", "interval": "—", "effect": "—", "source's": "—"}
    if entry.telling is not None:
        words = claim_rows([entry.telling])[0]
        told = {"measured": f"{words['claim']}: {words['measured']}", **{k: words[k] for k in list(told)[1:]}}
    why = (
        f": {entry.reason}" if entry.verdict == NOT_TESTED else f"; not tested: {entry.reason}" if entry.reason else ""
    )
    return {
        "statement": entry.says, "parts": entry.parts, **told,
        "seeds": min((c.measured.count for c in entry.claims), default=None),
        "verdict": f"**{entry.verdict}**{why}",
    }  # fmt: skip


def _versions(made: Mapping[str, Any]) -> str:
    return "; ".join(", ".join(f"{k} {v}" for k, v in each.items()) for each in made["versions"])


def _parts(content: Mapping[str, Any] | None, name: str) -> tuple[list[Claim], dict[str, Any]]:
    if content is None:
        return [], {}
    claims = [_claim(fields) for fields in content["claims"]]
    made = {key: content[key] for key in ("preset", "date", "versions")} | {"kept": content.get("kept", False)}
    return [c for c in claims if c.statement == name and c.measured.count >= SEEDS], made


def _statements(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name), str(text)) for name, text in content.get("statements", {}).items()]


def _claim(fields: Mapping[str, Any]) -> Claim:
    derived = ("verdict", "interval", "effect")
    own: dict[str, Any] = {key: value for key, value in fields.items() if key not in derived}
    own["measured"] = Stat(**fields["measured"])
    own["checks"] = [Check.read(check) for check in fields.get("checks", ())]
    made = Claim(**own)
    measured = made.measured
    numbers = (made.expected, made.tolerance, measured.mean, measured.std, measured.count)
    if not all(isinstance(n, int | float) for n in numbers) or not isinstance(made.name, str):
        raise ValueError(f"claim = {fields!r}: must have a name and numbers")
    return made
