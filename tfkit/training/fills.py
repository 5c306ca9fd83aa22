"""Ranked fillings of masked texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfkit.generation.writer import GeneratedText

FILLS = 5  # number of candidates per mask and of fillings per text

Fill = Mapping[str, Any]  # `token` as text, `id`, `probability`


def fillings(text: str, mask: str, fills: Sequence[Sequence[Fill]]) -> list[GeneratedText]:
    """Return the most likely fillings of `text`, given ranked candidates for each mask.

    Masks are treated as independent, so the log-probability of a filling is the sum over its masks.
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
    """Replace the masks of a text with tokens."""
    first, *others = text.split(mask)
    return first + "".join(token + part for token, part in zip(tokens, others, strict=True))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
