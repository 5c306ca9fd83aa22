"""Model card of a run (README.md): cost, training, data, scores and commands."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, TypeGuard

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import RunError
from tfkit.core.output import printable
from tfkit.runs.folder import CARD, ENVIRONMENT, EVALUATION, IMPORTED, NOTES, QUANTIZED_FROM, RunFolder
from tfkit.runs.history import read_history
from tfkit.runs.record import DATA, EXAMPLES
from tfkit.storage.checksums import write_text
from tfkit.storage.files import read_json, read_text

MARK = (
    "<!-- written by tfkit; SHA-256 of the text above: "  # a card without this mark, or edited since, is never replaced
)
LARGEST = 2**20  # maximum bytes read from a card
PROVE = "tfkit prove .  # measures the promises of the recipe"
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


class CardSection(NamedTuple):
    """Section of a card: lines and a table."""

    title: str
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def sections(folder: RunFolder) -> Iterator[str]:
    """Yield the facts about a run as Markdown. Raise RunError if a file of the run is damaged."""
    for title, lines, heads, rows in facts(folder, escaped):
        yield from (f"## {title}", "", *(text for line in lines for text in (line, "")))
        if rows:
            bars = "|".join("---:" if head in ("value", "before") else "---" for head in heads)
            yield from (f"| {' | '.join(heads)} |", f"|{bars}|", *(f"| {' | '.join(row)} |" for row in rows), "")


def facts(folder: RunFolder, shown: Callable[[str], str] = str) -> Iterator[CardSection]:
    """Yield the sections on origin, training, data and scores; `shown` escapes text of the user and of other files.

    Raise RunError if a file of the run is damaged.
    """
    known = folder.known if (folder / ENVIRONMENT).is_file() else {}
    imported, quantized, data = (
        one if isinstance(one := known.get(name), dict) else {} for name in (IMPORTED, QUANTIZED_FROM, DATA)
    )
    if lines := [*_imported(imported, shown), *_quantized(quantized, shown)]:
        before = [row[1:] for row in _scores({"": quantized.get("scores")}, shown)]
        yield CardSection("Origin", lines, ("measure", "before"), before)
    if lines := list(_training(folder, shown)):
        yield CardSection("Training", lines)
    if rows := list(_data(data, shown)):
        yield CardSection("Data", (), ("split", "file", "SHA-256"), rows)
    scores = read_json(folder / EVALUATION) if (folder / EVALUATION).is_file() else {}
    if rows := list(_scores(scores, shown)):
        yield CardSection("Scores", (), ("data", "measure", "value"), rows)


def as_code(text: str) -> Iterator[str]:
    """Yield a text as an indented code block, which no content can close early."""
    yield from (f"    {printable(line)}".rstrip() for line in text.splitlines())
    yield ""


def escaped(text: str) -> str:
    """Join the lines of a text and escape Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>&~$:@])", r"\\\1", printable(" ".join(text.split())))


def _imported(known: JsonObject, shown: Callable[[str], str]) -> Iterator[str]:
    if "from" in known:
        kind = f"{known.get('class')}, family {known.get('family')}"
        yield f"Imported from {shown(source_of(known))} ({shown(kind)}), weights in {shown(str(known.get('dtype')))}."
        notes = known.get(NOTES)
        yield from (f"- {shown(str(note))}" for note in (notes if isinstance(notes, list) else ()))


def source_of(imported: JsonObject) -> str:
    """Return the repository of an imported model, or the name of its folder."""
    source = str(imported["from"])
    return PurePath(source).name if PurePath(source).is_absolute() else source


def _quantized(known: JsonObject, shown: Callable[[str], str]) -> Iterator[str]:
    sizes = known.get("bytes")
    if isinstance(sizes, list) and len(sizes) == 2 and all(map(_is_number, sizes)):
        text = f"Quantized to int8 from the run {shown(str(known.get('run')))}: weights of {sizes[1]:,} bytes"
        yield f"{text} instead of {sizes[0]:,}."


def _training(folder: RunFolder, shown: Callable[[str], str]) -> Iterator[str]:
    history = read_history(folder)
    if history is None or not history.steps:
        return
    devices = " and ".join(dict.fromkeys(start.device for start in history.starts if start.device))
    text = f"{history.steps:,} steps on {history.tokens:,} tokens in {history.seconds:,.0f} s"
    text += f" on {shown(devices)}" if devices else ""
    text += "" if history.peak_memory is None else f", peak memory {history.peak_memory / 2**20:,.0f} MiB"
    best = "" if "loss" not in history.best else f" Best validation loss: {history.best['loss']:.4g}, at step "
    yield f"{text}.{best}{f'{history.best_step:,}.' if best else ''}"


def _data(known: JsonObject, shown: Callable[[str], str]) -> Iterator[list[str]]:
    """Yield the files of each split, with abbreviated SHA-256."""
    for split, hashes in known.items():
        files = list(hashes.items()) if isinstance(hashes, Mapping) else []
        for file, digest in files[:FILES]:
            name = "the examples" if file == EXAMPLES else shown(PurePath(str(file)).name)
            yield [shown(str(split)), name, shown(str(digest)[:12])]
        if len(files) > FILES:
            yield [shown(str(split)), f"and {len(files) - FILES:,} more", ""]


def _scores(scores: object, shown: Callable[[str], str]) -> Iterator[list[str]]:
    """Yield the numbers in evaluation.json."""
    for split, values in scores.items() if isinstance(scores, dict) else ():
        for name, value in values.items() if isinstance(values, dict) else ():
            if _is_number(value):
                yield [shown(str(split)), shown(str(name)), f"{value:.4g}"]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
