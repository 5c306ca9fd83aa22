"""Text for a terminal of any width: wrapped between words, never cut."""

from __future__ import annotations

import textwrap

from rich.console import Console

LEAST = 40  # columns; in a narrower terminal lines are longer than it is


def say(console: Console, text: str, indent: int = 0, style: str = "", hang: int = 4) -> None:
    """Print `text` after `indent` spaces, its further lines `hang` columns to the right."""
    wrapped = textwrap.fill(
        text,
        max(console.width, LEAST),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
        break_long_words=False,
    )
    console.print(wrapped, style=style, highlight=False, markup=False, soft_wrap=True)
