"""Warnings about texts longer than the model's `max_length`, whose last positions are untrained."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tfkit.core.blueprint import StackPlan
from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.generation.prompts import Source
from tfkit.generation.search import Candidate, Search
from tfkit.generation.stepper import most_positions

BEYOND = 100  # maximum length of a prompt, as a multiple of max_length


class LengthWarning(TfkitWarning):
    """A text that exceeds the model's `max_length`, or was cut off there before the requested length."""


def warn_of_prompts(search: Search) -> None:
    """Warn if a prompt or source is longer than `max_length`, before anything is computed.

    Raise UsageError beyond BEYOND * max_length tokens, which would take hours to compute.
    """
    read: list[tuple[Sequence[Source], str, StackPlan]] = [(search.prompts, "prompt", search.model.blueprint.last)]
    if search.sources is not None and search.model.blueprint.encoder is not None:
        read.append((search.sources, "source", search.model.blueprint.encoder))
    for rows, name, plan in read:
        longest, trained = max(map(len, rows), default=0), plan.max_length
        if trained is not None and longest > BEYOND * trained:
            raise UsageError(
                f"a {name} has {longest:,} tokens; the limit for this model is {BEYOND * trained:,} "
                f"({BEYOND} times its max_length of {trained:,}); shorten the {name}"
            )
        if trained is not None and longest > trained:
            _warn(
                f"a {name} is longer than the model's max_length of {trained:,} tokens; positions beyond it are "
                "untrained"
            )


def warn_of_texts(search: Search, candidates: Sequence[Sequence[Candidate]], requested: int | None) -> None:
    """Warn if a text exceeds `max_length`, or was cut off there before `requested` new tokens."""
    longest = search.model.blueprint.last.max_length
    if most_positions(search.model, search.model.blueprint.last.side) is not None:
        if requested is not None and any(_cut(search, row, texts, requested) for row, texts in enumerate(candidates)):
            _warn(f"a text ended before {requested:,} new tokens, as the model has no further positions")
    elif longest is not None:
        grown = any(
            len(prompt) <= longest < _reach(prompt, texts)
            for prompt, texts in zip(search.prompts, candidates, strict=True)
        )
        if grown:
            _warn(f"a text exceeds the model's max_length of {longest:,} tokens; positions beyond it are untrained")


def _reach(prompt: Sequence[int], texts: Sequence[Candidate]) -> int:
    """Return the number of positions that the longest text needs; the last token is never fed to the model."""
    return len(prompt) + max((len(text.ids) for text in texts), default=0) - 1


def _cut(search: Search, row: int, texts: Sequence[Candidate], requested: int) -> bool:
    """True if a text ended because the model has no further positions."""
    room, prompt = search.room[row], search.prompts[row]
    full = (text for text in texts if len(text.ids) == room < requested)
    return any(not search.rules.done(prompt, text.ids, 0.0) for text in full)


def _warn(message: str) -> None:
    warnings.warn(message, LengthWarning, stacklevel=2)
