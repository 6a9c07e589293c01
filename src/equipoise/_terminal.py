"""Text from runs and models in a terminal: letters that would steer it are written out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

STEERING = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
"""Control characters but tab and newline, and those that turn the direction of writing."""

WRITTEN = {i: f"\\x{i:02x}" if i < 256 else f"\\u{i:04x}" for i in STEERING}


def visible(text: str) -> str:
    r"""The text without letters that move the cursor, set a title, or turn the direction of what follows.

    >>> visible("a\x1b]0;X\x07")
    'a\\x1b]0;X\\x07'
    """
    return text.translate(WRITTEN)


def console(**options: Any) -> Any:
    """A console of rich that shows every text as `visible` has it; its own colours and moves stay.

    Args:
        **options: those of rich's `Console`.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Visible(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else visible(text), style, control)

    return Visible(**options)
