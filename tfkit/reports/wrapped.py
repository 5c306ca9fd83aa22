"""Terminal output that is wrapped between words and never truncated."""

from __future__ import annotations

import textwrap

from rich.console import Console

LEAST = 40  # minimum number of columns; in narrower terminals, the terminal wraps the lines


def say(console: Console, text: str, indent: int = 0, style: str = "", hang: int = 4) -> None:
    """Print `text` indented by `indent` spaces, with a hanging indent of `hang`."""
    wrapped = textwrap.fill(
        text,
        max(console.width, LEAST),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
        break_long_words=False,
    )
    console.print(wrapped, style=style, highlight=False, markup=False, soft_wrap=True)
