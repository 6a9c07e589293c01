"""Measure how far theory is from simulated random walks, and write the table of docs/theory.md.

python benchmarks/theory_table.py            # print it
python benchmarks/theory_table.py --write    # and put it into docs/theory.md
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.theory.walk_cases import Case, measure  # noqa: E402

RATES = (1e-4, 1e-3, 1e-2, 5e-2)
ROWS = [
    ("SGDM, coupled L2 (.9)", "sgdm", {}),
    ("SGDM, decoupled (.9)", "sgdm", {"coupled": False}),
    ("AdamW (.9, .999)", "adamw", {"beta2": 0.999}),
    ("AdamW (.95, .95)", "adamw", {"beta1": 0.95, "beta2": 0.95}),
    ("nested AdamW (.9, .99)", "adam_nested", {}),
    ("Adam + L2 (.9, .99)", "adam_l2", {}),
    ("RMSProp (.99)", "rmsprop", {}),
    ("SignSGDM (.9)", "signsgdm", {}),
    ("Lion (.9, .99)", "lion", {}),
    ("Muon 16×32 (.95)", "muon", {"beta1": 0.95, "shape": (16, 32), "rows": 12}),
    ("normalised GD", "ngd", {}),
    ("AdamW (.9, .99), cautious", "adamw", {"decay": "cautious"}),
    ("Lion (.9, .99), cautious", "lion", {"decay": "cautious"}),
]
MARKS = ("<!-- table: theory errors -->", "<!-- end of table -->")


def table() -> str:
    lines = [
        "| optimizer | ηλ | norm, exact | norm, small step | rotation, exact | rotation, small step |",
        "|---|---|---|---|---|---|",
    ]
    for label, optimizer, fields in ROWS:
        for rate in RATES:
            if optimizer == "muon" and rate < 1e-3:
                continue
            exact, small = measure(Case(optimizer, rate, **fields), "exact", "small_step")
            errors = (exact.norm, small.norm, exact.rotation, small.rotation)
            lines.append(f"| {label} | {rate:g} | " + " | ".join(f"{100 * e:+.1f} %" for e in errors) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    text = table()
    if "--write" in sys.argv:
        page = ROOT / "docs" / "theory.md"
        before, rest = page.read_text().split(MARKS[0])
        page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


if __name__ == "__main__":
    main()
