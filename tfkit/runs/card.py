"""Model card of a run (README.md): cost, training, data, scores and commands; its loss curves (curves.svg)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeGuard

import numpy as np

from tfkit.core.errors import RunError
from tfkit.core.figures import COLOURS, can_draw, drawn, finished, matplotlib_figure, svg
from tfkit.core.output import printable
from tfkit.runs.folder import CARD, CURVES, ENVIRONMENT, EVALUATION, IMPORTED, METRICS, NOTES, QUANTIZED_FROM, RunFolder
from tfkit.runs.history import good_lines, read_history
from tfkit.runs.record import DATA, EXAMPLES
from tfkit.storage.checksums import write_text
from tfkit.storage.files import read_bytes, read_json, read_text

LEAST = 20  # minimum number of steps for a plot
CURVE_POINTS = 400  # maximum points per line; more are averaged in groups
PANELS = {"loss": "loss, nats", "learning_rate": "learning rate", "gradient_norm": "gradient norm"}
Record = Mapping[str, Any]


def write_curves(folder: RunFolder) -> None:
    """Plot metrics.jsonl. Do nothing without matplotlib, with too few steps, or if plotting or writing fails."""
    if not can_draw():
        return
    with contextlib.suppress(RunError, OSError):
        records = [json.loads(line) for line in good_lines(read_bytes(folder / METRICS))[0]]
        if len(records) >= LEAST:
            picture = drawn(CURVES, lambda: curves(records, folder.path.name))
            if picture:
                write_text(folder / CURVES, picture)


def curves(records: Sequence[Record], title: str) -> str:
    """Plot a run's records as SVG, one panel per quantity. The validation loss is drawn over the training loss."""
    measured = list(dict.fromkeys(name for record in records for name in record if name.startswith("valid.")))
    panels = {**PANELS, **{name: name for name in measured if name != "valid.loss"}}
    rows = math.ceil(len(panels) / 2)
    figure = matplotlib_figure()(figsize=(9, 3 * rows), layout="constrained")
    figure.suptitle(title)
    grid = np.atleast_1d(figure.subplots(rows, 2)).ravel()
    for axes, (name, words) in zip(grid, panels.items(), strict=False):
        steps, values = _line(records, name)
        validated = name.startswith("valid.")
        axes.plot(steps, values, color=COLOURS[validated], linewidth=1.2, label="training" if name == "loss" else None)
        if name == "loss" and "valid.loss" in measured:
            axes.plot(*_line(records, "valid.loss"), color=COLOURS[1], marker="o", markersize=3, label="validation")
        if name == "gradient_norm":
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(words)
        finished(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return svg(figure, "curves") + "\n"


def _line(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a quantity, averaged in groups if more than POINTS."""
    points = [(record["step"], record[name]) for record in records if isinstance(record.get(name), (int, float))]
    size = math.ceil(len(points) / CURVE_POINTS) or 1
    groups = [np.asarray(points[start : start + size], dtype=float) for start in range(0, len(points), size)]
    means = [group.mean(axis=0) for group in groups]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]


MARK = (
    "<!-- written by tfkit; SHA-256 of the text above: "  # a card without this mark, or edited since, is never replaced
)
LARGEST = 2**20  # maximum bytes read from a card
PROVE = "tfkit prove .  # measures the promises of the recipe"
POINTS = 20  # maximum points of the curve
FILES = 8  # maximum files listed per split


def signed(lines: Sequence[str]) -> str:
    """Append a checksum, so that later edits are detected."""
    text = "\n".join([*lines, ""])
    return f"{text}{MARK}{_digest(text)} -->\n"


def is_ours(card: Path) -> bool:
    """True if tfkit wrote the card and it has not been edited since."""
    try:
        text, mark, rest = read_text(card, LARGEST).rpartition(MARK)
    except RunError:
        return False
    return bool(mark) and not card.is_symlink() and rest == f"{_digest(text)} -->\n"


def run_card(folder: RunFolder, name: str, summary: Sequence[str], address: str = "") -> str:
    """Return the card of a run, or of its hub repository if `address` is set."""
    lines = [f"# {escaped(name)}", "", summary[0], "", *as_code("\n".join(summary[1:]))]
    if address:
        load = f'import tfkit\n\nrun = tfkit.load_run("{address}")'
        lines = ["---", "library_name: tfkit", "tags: [tfkit]", "---", "", *lines, "## Use", "", *as_code(load)]
    checks = "sha256sum -c SHA256SUMS  # the files are unchanged"
    checks += f"\n{PROVE}"
    text = "The recipe is `recipe.yaml`; `resolved.yaml` lists every value, defaults included. Run in this folder:"
    return signed([*lines, *sections(folder), "## Check", "", text, "", *as_code(checks)])


def write_card(folder: RunFolder, name: str, summary: Sequence[str]) -> None:
    """Write the card. Do nothing if the user has written one, or if writing fails."""
    if (folder / CARD).exists() and not is_ours(folder / CARD):
        return
    with contextlib.suppress(RunError, OSError):
        write_text(folder / CARD, run_card(folder, name, summary))


def drop_prove(folder: RunFolder) -> None:
    """Remove the command that needs weights from the card, unless the user has edited it."""
    card = folder / CARD
    if is_ours(card):
        lines = read_text(card).rpartition(MARK)[0].splitlines()
        write_text(card, signed([line for line in lines if line.strip() != PROVE]))


def sections(folder: RunFolder) -> Iterator[str]:
    """Yield the sections on origin, training, data and scores. Raise RunError if a file of the run is damaged."""
    known = folder.known if (folder / ENVIRONMENT).is_file() else {}
    lines = [*_imported(known.get(IMPORTED)), *_quantized(known.get(QUANTIZED_FROM))]
    if lines:
        yield from ("## Origin", "", *lines)
    yield from _training(folder)
    yield from _data(known.get(DATA))
    if (folder / EVALUATION).is_file():
        yield from _scores(read_json(folder / EVALUATION))
    if (folder / METRICS).is_file():
        yield from _curve(good_lines(read_bytes(folder / METRICS))[0])


def as_code(text: str) -> Iterator[str]:
    """Yield a text as an indented code block, which no content can close early."""
    yield from (f"    {printable(line)}".rstrip() for line in text.splitlines())
    yield ""


def escaped(text: str) -> str:
    """Join the lines of a text and escape Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>&~$:@])", r"\\\1", printable(" ".join(text.split())))


def _imported(known: object) -> Iterator[str]:
    if not isinstance(known, Mapping) or "from" not in known:
        return
    source = str(known["from"])
    name = PurePath(source).name if PurePath(source).is_absolute() else source
    kind = f"{known.get('class')}, family {known.get('family')}"
    yield from (f"Imported from {escaped(name)} ({escaped(kind)}), weights in {escaped(str(known.get('dtype')))}.", "")
    notes = known.get(NOTES)
    if isinstance(notes, list) and notes:
        yield from (*(f"- {escaped(str(note))}" for note in notes), "")


def _quantized(known: object) -> Iterator[str]:
    known = known if isinstance(known, Mapping) else {}
    sizes = known.get("bytes")
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(map(_is_number, sizes)):
        return
    text = f"Quantized to int8 from the run {escaped(str(known.get('run')))}: weights of {sizes[1]:,} bytes"
    yield from (f"{text} instead of {sizes[0]:,}.", "")
    scores = known.get("scores")
    rows = [
        f"| {escaped(str(name))} | {value:.4g} |"
        for name, value in (scores.items() if isinstance(scores, Mapping) else ())
        if _is_number(value)
    ]
    if rows:
        yield from ("| measure | before |", "|---|---:|", *rows, "")


def _training(folder: RunFolder) -> Iterator[str]:
    history = read_history(folder)
    if history is None or not history.steps:
        return
    devices = " and ".join(dict.fromkeys(start.device for start in history.starts if start.device))
    text = f"{history.steps:,} steps on {history.tokens:,} tokens in {history.seconds:,.0f} s"
    text += f" on {escaped(devices)}" if devices else ""
    text += "" if history.peak_memory is None else f", peak memory {history.peak_memory / 2**20:,.0f} MiB"
    best = "" if "loss" not in history.best else f" Best validation loss: {history.best['loss']:.4g}, at step "
    yield from ("## Training", "", f"{text}.{best}{f'{history.best_step:,}.' if best else ''}", "")


def _data(known: object) -> Iterator[str]:
    """Yield a table of the files of each split, with abbreviated SHA-256."""
    rows = []
    for split, hashes in known.items() if isinstance(known, Mapping) else ():
        files = list(hashes.items()) if isinstance(hashes, Mapping) else []
        for file, digest in files[:FILES]:
            name = "the examples" if file == EXAMPLES else escaped(PurePath(str(file)).name)
            rows.append(f"| {escaped(str(split))} | {name} | {escaped(str(digest)[:12])} |")
        if len(files) > FILES:
            rows.append(f"| {escaped(str(split))} | and {len(files) - FILES:,} more | |")
    if rows:
        yield from ("## Data", "", "| split | file | SHA-256 |", "|---|---|---|", *rows, "")


def _scores(scores: object) -> Iterator[str]:
    """Yield the numbers in evaluation.json as a table."""
    rows = [
        f"| {escaped(str(split))} | {escaped(str(name))} | {value:.4g} |"
        for split, values in (scores.items() if isinstance(scores, dict) else ())
        for name, value in (values.items() if isinstance(values, dict) else ())
        if _is_number(value)
    ]
    if rows:
        yield from ("## Scores", "", "| data | measure | value |", "|---|---|---:|", *rows, "")


def _curve(lines: Iterable[str]) -> Iterator[str]:
    """Yield the loss by step as a Mermaid chart."""
    records = [json.loads(line) for line in lines]
    losses = {record["step"]: record["loss"] for record in records if _is_number(record.get("loss"))}
    valid = {record["step"]: record["valid.loss"] for record in records if _is_number(record.get("valid.loss"))}
    measured = len(valid) > 1
    every = sorted(step for step in (valid if measured else losses) if step >= min(losses, default=0))
    count = min(POINTS, len(every))
    steps = [every[len(every) * (place + 1) // count - 1] for place in range(count)]  # evenly spaced, with the last
    if len(steps) < 2 or not losses:
        return
    yield from (
        "## Curve",
        "",
        "Loss in nats by step: training" + ", and validation." * measured + "." * (not measured),
    )
    yield from ("", "```mermaid", "xychart-beta", f'    x-axis "step" [{", ".join(map(str, steps))}]')
    yield from ('    y-axis "loss"', f"    line [{_numbers(_means(losses, steps))}]")
    if measured:
        yield f"    line [{_numbers([valid[step] for step in steps])}]"
    yield from ("```", "")


def _means(losses: Mapping[int, float], steps: Sequence[int]) -> Iterator[float]:
    """Yield, for each step, the mean loss since the previous one. Repeat the last mean if there are no losses."""
    before, mean = -1, float(next(iter(losses.values())))
    for step in steps:
        group = [loss for at, loss in losses.items() if before < at <= step]
        mean = math.fsum(group) / len(group) if group else mean
        before = step
        yield mean


def _numbers(values: Iterator[float] | Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
