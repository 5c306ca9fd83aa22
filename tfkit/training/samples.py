"""Table of sample outputs and references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, NamedTuple

SHOWN = 160  # maximum characters of a text


class SampleOutput(NamedTuple):
    """A source with the model's output and the reference."""

    source: str
    output: str
    reference: str

    def line(self) -> str:
        """Format as one line."""
        return f"{cut(self.source)} -> {cut(self.output)} (reference: {cut(self.reference)})"


def cut(text: str) -> str:
    """Truncate a text for display, because an undertrained model may not stop generating."""
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def print_samples(samples: Sequence[SampleOutput], stream: IO[str]) -> None:
    """Print the samples as a table, with correct outputs in green. Raise OutputLost if the stream fails."""
    from rich.table import Table
    from rich.text import Text

    from tfkit.core.console import Console

    table = Table(show_lines=False)
    for heading in ("source", "output", "reference"):
        table.add_column(heading, overflow="fold")
    for source, output, reference in samples:
        colour = "green" if output == reference else ""
        table.add_row(Text(cut(source)), Text(cut(output), colour), Text(cut(reference)))
    Console(stream).print(table)
