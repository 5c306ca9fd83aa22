"""Output of `tfkit show` and `diff` to a terminal of any width, to a pipe or to a file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tfkit.core.bounds import JsonObject
from tfkit.core.machine import readable_bytes
from tfkit.core.output import some
from tfkit.reports.counts import Counts
from tfkit.reports.diff import Change
from tfkit.reports.parts_table import exact

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
    exact(console, wrapped, style)


SHOWN_NAMES = 8
TEXT_WIDTH = 24  # minimum width of the first column
ONCE = "computed once for all layers"  # title of the row for masks, shared position biases and memory
# figures shown first in the headline
LABELS = {"d_model": "d_model", "vocab_size": "vocabulary", "num_layers": "layers"}
ELSEWHERE = ("max_length", "memory_width", "last_state")  # stack figures omitted from the headline
FIGURES = {
    "parameters": "parameters",
    "flops_per_token": "FLOPs/token",
    "activation_bytes": "activation",
    "cache_bytes": "KV cache",
}


def render(data: JsonObject, console: Console) -> None:
    """Print the result of `as_data` at the console's width; figures are never truncated."""
    lines = list(table_lines(data))
    widths = [max(len(line.figures[column]) for line in lines if line.figures) + 2 for column in range(len(FIGURES))]
    text_width = max(console.width - sum(widths), TEXT_WIDTH)
    say(console, headline(data), style="bold", hang=0)
    if data["note"]:
        say(console, data["note"], hang=0)
    console.print()
    for line in lines:
        fits = bool(line.figures) and len(line.text) <= text_width
        if not fits:
            say(console, line.text, style=line.style, hang=line.indent)
        if line.figures:
            figures = "".join(figure.rjust(width) for figure, width in zip(line.figures, widths, strict=True))
            exact(console, (line.text * fits).ljust(text_width) + figures, line.style)
    console.print()
    say(console, caption(data), style="dim", hang=0)


def headline(data: JsonObject) -> str:
    """Summarize the model in a line, including the number of parameters if `data` has it."""
    words = [data["type"]]
    figures = list(data["stacks"].values())
    for name in [*LABELS, *(name for name in figures[0] if name not in LABELS and name not in ELSEWHERE)]:
        shown = [f"{stack[name]:,}" for stack in figures if stack[name]]
        shown = shown if name == "num_layers" else list(dict.fromkeys(shown))  # depths are listed for each stack
        words += [f"{LABELS.get(name, name)} {' and '.join(shown)}"] if shown else []
    if figures[-1]["last_state"]:
        words.append("connected by the last state")
    if "parameters" not in data:
        return f"{data['name']}: {', '.join(words)}"
    words.append(f"{data['parameters']:,} parameters")
    if data["trainable_parameters"] != data["parameters"]:
        words.append(f"{data['trainable_parameters']:,} trainable")
    if data["active_parameters"] != data["parameters"]:
        words.append(f"{data['active_parameters']:,} active per token")
    return f"{data['name']}: {', '.join(words)}"


def caption(data: JsonObject) -> str:
    """Return the legend of the table."""
    paired = len(data["stacks"]) == 2
    text = (
        f"At length {data['length']:,}{' on both sides' * paired}, batch {data['batch']:,}, {data['dtype']} "
        f"({readable_bytes(data['weight_bytes'])} of weights). A line with a dash is a part of one layer; the line "
        "above is the total of these layers, with shared weights counted once. FLOPs: forward pass per token, 2 per "
        "multiply-add"
    )
    text += " of the target, including the work on the source." if paired else "."
    return text + (
        " Activation: bytes that a training forward saves for the backward pass, before the loss."
        " KV cache: decode state after that many tokens."
    )


@dataclass(frozen=True)
class TableLine:
    """A line of the table; if it has no figures, its text may use the full width."""

    text: str
    figures: tuple[str, ...] = ()
    style: str = ""
    indent: int = 0


def table_lines(data: JsonObject) -> Iterator[TableLine]:
    """Yield the lines of the table, the header first."""
    yield TableLine("", tuple(FIGURES.values()), "bold")
    for name, one in data["inputs"].items():
        text = f"input {name} [{one['width']:,}], read by {' and '.join(one['readers'])} (context.inputs)"
        yield TableLine(text, style="dim", indent=2)
    side = None
    for row in data["rows"]:
        if row["stack"] != side:
            yield TableLine(row["stack"] or "heads", style="bold")
        side = row["stack"]
        yield from _layer_lines(row) if "layers" in row else _single_lines(row)
    yield TableLine("total", _figures(data["total"]), "bold")


def _single_lines(row: JsonObject) -> Iterator[TableLine]:
    """Format the row of a module outside the layers."""
    yield TableLine(f"  {ONCE if row['name'] == 'once' else row['name']}", _figures(row))
    yield from (_details(part, 4) for part in row["parts"] if part["summary"])


def _layer_lines(row: JsonObject) -> Iterator[TableLine]:
    """Format the row of all layers of a kind, followed by their parts."""
    many = f" {row['layers']}" if row["times"] == 1 else f"s {row['layers']} ({row['times']:,}x)"
    yield TableLine(f"  layer{many}", _figures(row))
    for name in ("mask", "position"):
        if row[name] or (name == "position" and row[name] is not None):
            yield TableLine(f"    {name}: {', '.join(row[name]) or 'none'}", style="dim", indent=6)
    if row["streams"] is not None:
        yield TableLine(f"    streams: {row['streams']:,}", style="dim", indent=6)
    for name in ("reads", "writes"):
        if row[name]:
            yield TableLine(f"    {name} {', '.join(row[name])} (context.store)", style="dim", indent=6)
    for part in row["parts"]:
        yield TableLine(f"  - {part['name']}", _figures(part))
        dropped = part["name"] == "residual" and row["dropout"]
        yield _details(part, 6, f", dropout {row['dropout']:g}" if dropped else "")


def _details(part: JsonObject, indent: int, more: str = "") -> TableLine:
    text = part["summary"] + more + (": " if part["weights"] else "") + "; ".join(weight_groups(part["weights"]))
    return TableLine(" " * indent + text, style="dim", indent=indent + 2)


def weight_groups(weights: dict[str, list[int]]) -> list[str]:
    """Group weights by shape: `512 x 512 query, key, value, output`, without the suffix `.weight`."""
    by_shape: dict[str, list[str]] = {}
    for name, dims in weights.items():
        by_shape.setdefault(" x ".join(map(str, dims)) or "scalar", []).append(name.removesuffix(".weight"))
    return [f"{shape} {some(names, SHOWN_NAMES)}" for shape, names in by_shape.items()]


def _figures(costs: JsonObject) -> tuple[str, ...]:
    return tuple(figure(key, costs[key]) for key in FIGURES)


def figure(key: str, value: int) -> str:
    """Format a cost."""
    return _figure(key, value) if value else "-"


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


def render_diff(diff: Diff, console: Console) -> None:
    """Print the differences, wrapped to the console's width but never truncated."""
    for side, name in zip("AB", diff.names, strict=True):
        say(console, f"{side}: {name}", style="bold")
    for note in diff.notes:
        say(console, note)
    if diff.architecture:
        console.print()
        _changes(console, "architecture", diff.architecture)
        console.print()
        _diff_figures(diff, console)
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


def _diff_figures(diff: Diff, console: Console) -> None:
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
