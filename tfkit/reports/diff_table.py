"""Output of `tfkit diff`: the differences, followed by a table of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tfkit.core.machine import readable_bytes
from tfkit.core.trees import JsonObject
from tfkit.reports.counts import Counts
from tfkit.reports.difference import Change
from tfkit.reports.table import FIGURES
from tfkit.reports.wrapped import say

WIDEST = 1000  # console width for measuring the table


class Diff(NamedTuple):
    """All differences between two recipes (names and costs are those of A and B), and additional `notes`."""

    names: tuple[str, str]
    counts: tuple[Counts, Counts]
    architecture: Sequence[Change]
    settings: Sequence[Change]
    notes: Sequence[str] = ()


def as_data(diff: Diff) -> JsonObject:
    """Return what `render` prints as data, with exact figures."""
    counts = diff.counts[0]
    return {
        **dict(zip("ab", diff.names, strict=True)),
        "same_architecture": not diff.architecture,
        "same_settings": not diff.settings,
        "architecture": [_change_data(change) for change in diff.architecture],
        "settings": [_change_data(change) for change in diff.settings],
        "length": counts.length,
        "batch": counts.batch,
        "dtype": str(counts.dtype).removeprefix("torch."),
        "figures": {side: asdict(one.total) for side, one in zip("ab", diff.counts, strict=True)},
        "notes": list(diff.notes),
    }


def _change_data(change: Change) -> dict[str, object]:
    return {"what": change.what, "where": change.where or None, "a": change.before, "b": change.after}


def render(diff: Diff, console: Console) -> None:
    """Print the differences, wrapped to the console's width but never truncated."""
    for side, name in zip("AB", diff.names, strict=True):
        say(console, f"{side}: {name}", style="bold")
    for note in diff.notes:
        say(console, note)
    if diff.architecture:
        console.print()
        _changes(console, "architecture", diff.architecture)
        console.print()
        _figures(diff, console)
        say(console, _caption(diff), style="dim")
        console.print()
    else:
        say(console, f"the same architecture, {diff.counts[0].total.parameters:,} parameters")
    if diff.settings:
        _changes(console, "data and training", diff.settings)
    else:
        text = "the settings of data, objective, training and generation are the same"
        say(console, text + " too" * (not diff.architecture))


def _changes(console: Console, title: str, changes: Sequence[Change]) -> None:
    say(console, title, style="bold")
    for change in changes:
        where = f"{change.where}: " if change.where else ""
        say(console, f"{where}{change.what}: {change.before} -> {change.after}", indent=2)


def _figures(diff: Diff, console: Console) -> None:
    """Print both costs and their difference, as lines of text if the console is too narrow for a table."""
    old, new = (asdict(counts.total) for counts in diff.counts)
    rows = [("", "A", "B", "difference")]
    for key, title in FIGURES.items():
        rows.append((title, _figure(key, old[key]), _figure(key, new[key]), _change(key, old[key], new[key])))
    table = Table(box=None, pad_edge=False, show_header=False)
    for index in range(4):
        table.add_column(justify="right" if index else "left", no_wrap=True)
    for index, row in enumerate(rows):
        table.add_row(*row, style="" if index else "bold")
    if console.measure(table, options=console.options.update(max_width=WIDEST)).maximum <= console.width:
        console.print(table)
        return
    for title, before, after, change in rows[1:]:
        say(console, f"{title}: {before} -> {after}, difference {change}")


def _figure(key: str, value: int) -> str:
    return readable_bytes(value) if key.endswith("_bytes") else f"{value:,}"


def _change(key: str, before: int, after: int) -> str:
    if before == after:
        return "none"
    text = ("+" if after > before else "-") + _figure(key, abs(after - before))
    return f"{text} ({100 * (after - before) / before:+.3g}%)" if before else text


def _caption(diff: Diff) -> str:
    counts = diff.counts[0]
    paired = any(len(list(one.blueprint.stacks())) == 2 for one in diff.counts)
    sides = " (on both sides of an encoder-decoder)" if paired else ""
    dtype = str(counts.dtype).removeprefix("torch.")
    return f"At length {counts.length:,}{sides}, batch {counts.batch:,}, {dtype}; counted as by `tfkit show`."
