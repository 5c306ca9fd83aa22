"""Texts whose masks are filled in, the likeliest first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfkit.generation.writer import GeneratedText

FILLS = 5  # that are named for each mask, and ways to fill all the masks of a text

Fill = Mapping[str, Any]  # a `token` as it reads in a text, its `id` and its `probability`


def fillings(text: str, mask: str, fills: Sequence[Sequence[Fill]]) -> list[GeneratedText]:
    """The likeliest ways to fill the masks of `text`, from the fills of each, which come the likeliest first.

    Masks are filled each by itself, as the model says them: the log-probability of a way is the sum over its masks.
    """
    ways: list[tuple[tuple[Fill, ...], float]] = [((), 0.0)]
    for choices in fills:
        longer = [((*way, fill), total + _log(fill["probability"])) for way, total in ways for fill in choices]
        ways = sorted(longer, key=lambda one: one[1], reverse=True)[:FILLS]
    return [
        GeneratedText(
            filled(text, mask, [fill["token"] for fill in way]), tuple(fill["id"] for fill in way), total, total
        )
        for way, total in ways
    ]


def filled(text: str, mask: str, tokens: Sequence[str]) -> str:
    """The text with a token in the place of each mask."""
    first, *others = text.split(mask)
    return first + "".join(token + part for token, part in zip(tokens, others, strict=True))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
