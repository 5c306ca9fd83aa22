"""The model card of an export: README.md with the architecture, its sizes, scores, and how to load it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tfkit.core.component import spell
from tfkit.core.errors import RunError
from tfkit.core.files import read_json, read_text
from tfkit.core.output import printable
from tfkit.recipe.changes.migrate import LANGUAGE
from tfkit.recipe.views.resolved import model_values
from tfkit.run import Run
from tfkit.training.folder import EVALUATION

CARD = "README.md"
MARK = "<!-- written by tfkit export -->"  # a card without it is its author's, and is never replaced
MOST = 2**20  # bytes of a card that is looked at


def is_ours(card: Path) -> bool:
    """True if an export wrote the card."""
    try:
        return MARK in read_text(card, MOST)
    except RunError:
        return False


def card(run: Run, loader: str, own_code: bool) -> str:
    """Return the card of a run that transformers loads as `loader`."""
    trusted = ", trust_remote_code=True" if own_code else ""
    use = f'import transformers\n\nmodel = transformers.{loader}.from_pretrained("."{trusted})'
    return _card(run, "transformers", use)


def run_card(run: Run, address: str) -> str:
    """Return the card of a run that tfkit loads from an address."""
    return _card(run, "tfkit", f'import tfkit\n\nrun = tfkit.load_run("{address}")')


def _card(run: Run, library: str, use: str) -> str:
    """A card with the lines of Python that load the run; texts of users cannot become markup."""
    count = sum(parameter.numel() for parameter in run.model.parameters())
    recipe = {"tfkit": LANGUAGE, "model": spell(model_values(run.blueprint))}
    lines = [
        *("---", f"library_name: {library}", "tags: [tfkit]", "---", MARK, ""),
        *(f"# {_escaped(run.recipe.name)}", "", f"{count:,} parameters.", ""),
        *_code("\n".join(run.recipe.lines())),
        *("## Use", ""),
        *_code(use),
        *_scores(run),
        *("## Recipe", "", "The architecture as a recipe of tfkit, every value spelled out:", ""),
        *_code(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)),
    ]
    return "\n".join(lines)


def _scores(run: Run) -> Iterator[str]:
    """The numbers of evaluation.json as a table; nothing of a run that was not evaluated."""
    file = run.folder / EVALUATION
    scores = read_json(file) if file.is_file() else {}
    rows = [
        f"| {_escaped(str(split))} | {_escaped(str(name))} | {value:.4g} |"
        for split, values in (scores.items() if isinstance(scores, dict) else ())
        for name, value in (values.items() if isinstance(values, dict) else ())
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    if rows:
        yield from ("## Scores", "", "| data | measure | value |", "|---|---|---:|", *rows, "")


def _code(text: str) -> Iterator[str]:
    """A text as an indented block, which nothing in it can end."""
    yield from (f"    {printable(line)}".rstrip() for line in text.splitlines())
    yield ""


def _escaped(text: str) -> str:
    """A text as one line that is no markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>&~$:@])", r"\\\1", printable(" ".join(text.split())))
