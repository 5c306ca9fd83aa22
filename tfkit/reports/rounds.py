"""Times of several calls in alternating rounds, so that other load on the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from tfkit.core.console import Console
from tfkit.core.errors import UsageError
from tfkit.core.synonyms import nearest
from tfkit.core.trees import JsonObject

Call = Callable[[], object]
OWN = "tfkit"
WIDEST = 100  # minimum table width, sufficient for six lengths


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the requested names. Raise UsageError for unknown names."""
    for name in names:
        if name not in known:
            hint = nearest(name, list(known))
            suggestion = f"; did you mean '{hint}'?" if hint else ""
            raise UsageError(f"unknown {what} '{name}'; available: {', '.join(known)}{suggestion}")
    return list(names)


def alternate(calls: Mapping[str, Call | None], rounds: int) -> dict[str, tuple[float, ...] | None]:
    """Return the seconds of each call by name, one per round after a warm-up round; None for calls that are None."""
    supported = {name: call for name, call in calls.items() if call is not None}
    seconds: dict[str, list[float]] = {name: [] for name in supported}
    for number in range(rounds + 1):
        for name, call in supported.items():
            elapsed = _seconds(call)
            if number:
                seconds[name].append(elapsed)
    return {name: tuple(seconds[name]) if name in seconds else None for name in calls}


def compared(seconds: Sequence[float] | None, own: Sequence[float]) -> JsonObject:
    """Return the median of the seconds, and the median and range of their ratios to tfkit's in the same round."""
    if seconds is None:
        return {"seconds": None, "ratio": None, "ratios": None}
    ratios = sorted(one / other for one, other in zip(seconds, own, strict=True))
    return {
        "seconds": statistics.median(seconds),
        "ratio": statistics.median(ratios),
        "ratios": [ratios[0], ratios[-1]],
    }


def print_table(rows: Sequence[JsonObject], texts: Mapping[str, str], figures: Mapping[str, str]) -> None:
    """Print rows of `compared`.

    `texts` maps a column title to a key, `figures` maps a title to a format string for the row.
    """
    table = Table(box=None, pad_edge=False)
    for title in texts:
        table.add_column(title, no_wrap=True)
    for title in (*figures, "x tfkit", "range"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row[key]) for key in texts.values()]
        if row["ratio"] is None:
            table.add_row(*cells, *["-"] * (len(figures) + 2))
            continue
        least, most = row["ratios"]
        values = [form.format(**row) for form in figures.values()]
        table.add_row(*cells, *values, f"{row['ratio']:.2f}x", f"{least:.2f}-{most:.2f}")
    console = Console()
    console.print(table, width=max(console.width, WIDEST), crop=False)  # overflow rather than truncate


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
