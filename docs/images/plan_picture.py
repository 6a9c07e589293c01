"""Draw docs/images/plan.svg: what `equipoise plan` prints, as a picture for the README.

python docs/images/plan_picture.py
"""

import io
import re
from pathlib import Path

from rich.console import Console

import equipoise as eq


def main() -> None:
    """Write the picture beside this file."""
    plan = eq.plan(
        optimizer="adamw",
        lr=3e-4,
        weight_decay=0.1,
        steps=20_000,
        schedule="cosine",
        warmup=500,
        tensors=(
            eq.planner.Tensor(name="attention", shape=(1024, 1024), init_rms=0.02),
            eq.planner.Tensor(name="mlp.up", shape=(4096, 1024), init_rms=0.06),
        ),
    )
    console = Console(record=True, width=96, file=io.StringIO())
    console.print(plan)
    svg = console.export_svg(title="equipoise plan")
    # No fonts from elsewhere: the reader's own monospace font will do.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono").replace("fira-code", "DejaVu Sans Mono")
    (Path(__file__).parent / "plan.svg").write_text(svg)


if __name__ == "__main__":
    main()
