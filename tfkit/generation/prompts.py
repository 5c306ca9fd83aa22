"""Prompts as texts or ids, one or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import TfkitError, UsageError

Ids = Sequence[int]
Source = Ids | NDArray[np.float32]  # encoder input: ids, or vectors [time width]
Prompts = str | Sequence[str | Ids] | Ids


class PromptError(UsageError):
    """Invalid prompt: `name` is "prompt" or "source", `number` counts from 1, `what` is the fault."""

    def __init__(self, name: str, number: int, what: str) -> None:
        super().__init__(f"{name} {number} {what}")
        self.name = name
        self.number = number
        self.what = what


def prompt_ids(prompts: Prompts, read: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
    """Return the ids of each prompt, encoding texts with `read`. Ids may also be tensors or arrays.

    Raise UsageError for other types, and PromptError if a single prompt is invalid.
    """
    prompt_list = _listed(prompts)
    several = [prompt_list] if isinstance(prompt_list, str) or _are_ids(prompt_list) else prompt_list
    if not isinstance(several, list):
        raise UsageError(f"a prompt is a text or a list of ids, got {prompts!r}")
    rows = [_listed(prompt) for prompt in several]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str) and row != [] and not _are_ids(row):
            raise PromptError("prompt", number, f"is neither a text nor a list of ids: {row!r}")
    texts = {place: row for place, row in enumerate(rows) if isinstance(row, str)}
    encoded = dict(zip(texts, _read(list(texts.values()), list(texts), read), strict=True))
    return [encoded.get(place, row) for place, row in enumerate(rows)]


def _listed(value: object) -> Any:
    """Convert tensors, arrays, tuples and ranges to lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _read(
    texts: Sequence[str], places: Sequence[int], read: Callable[[Sequence[str]], list[list[int]]]
) -> list[list[int]]:
    """Encode texts. Raise PromptError for the first text that fails."""
    try:
        return read(texts)
    except TfkitError:
        for place, text in zip(places, texts, strict=True):
            try:
                read([text])
            except TfkitError as error:
                raise PromptError("prompt", place + 1, f"cannot be read: {error}") from None
        raise
