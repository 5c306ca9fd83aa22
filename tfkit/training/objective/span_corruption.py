"""Span corruption: predict the spans replaced by sentinels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.special import SENTINEL
from tfkit.training.baseline import Ids
from tfkit.training.objective.rewriting import Rewriting, RewritingRows, random_split
from tfkit.training.objective.rows import Item, wrapped


class SpanCorruptionRows(RewritingRows):
    """Rows whose source has a sentinel in place of each hidden span, and whose target lists sentinels and spans."""

    config: SpanCorruption.Config

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        super().__init__(config)
        self._sentinels: tuple[int, ...] = ()

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to the tokenizer. Raise DataError unless it has two sentinels."""
        super().bind(tokenizer)
        found: list[int] = []
        while (name := SENTINEL.format(len(found))) in tokenizer:
            found.append(tokenizer.id(name))
        if len(found) < 2:
            raise DataError(
                "span_corruption replaces spans with the tokens <extra_id_0>, <extra_id_1>, ..., but the tokenizer has "
                f"{len(found)} of them; set data.tokenizer.special_tokens: {{sentinels: 100}}"
            )
        self._sentinels = tuple(found)

    def _sizes(self, length: int) -> tuple[int, int]:
        """Return the number of hidden tokens and of spans. A visible token precedes each span."""
        hidden = min(max(round(length * self.config.probability), 1), length - 1)
        spans = max(round(hidden / self.config.mean_span), 1)
        return hidden, min(spans, hidden, length - hidden, len(self._sentinels) - 1)

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """Return row lengths [items 2], which do not depend on the choice of spans."""
        return np.asarray([self._positions(len(item["text"])) for item in items])

    def _positions(self, length: int) -> tuple[int, int]:
        if length < 2:
            return length + 2, length + 2
        hidden, spans = self._sizes(length)
        return length - hidden + spans + 1, hidden + spans + 2

    def spoiled(self, text: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Split the text into alternating visible and hidden spans. The target ends with one more sentinel."""
        hidden, spans = self._sizes(len(text))
        sizes = np.stack(
            (random_split(len(text) - hidden, spans, rng), random_split(hidden, spans, rng)), axis=1
        ).flatten()
        pieces = np.split(text, np.cumsum(sizes)[:-1])
        source, target = [], []
        for number, (shown, lost) in enumerate(zip(pieces[::2], pieces[1::2], strict=True)):
            sentinel = np.asarray([self._sentinels[number]], dtype=np.int32)
            source += [shown, sentinel]
            target += [sentinel, lost]
        last = np.asarray([self._sentinels[spans]], dtype=np.int32)
        start, end = self.tokens.special["start"], self.tokens.special["end"]
        return wrapped(np.concatenate(source), end=end), wrapped(np.concatenate([*target, last]), start, end)


@register("objective", "span_corruption")
class SpanCorruption(Rewriting):
    """Loss = -log p(<0> span <1> span ... | text with <0>, <1>, ... for the spans) (Raffel et al. 2019: 1910.10683).

    Sentinels are the tokens <extra_id_0>, <extra_id_1>, ...; a text has fewer hidden spans than there are sentinels.
    """

    rows_type = SpanCorruptionRows

    class Config(Rewriting.Config):
        """Options of span_corruption."""

        probability: float = Field(0.15, gt=0, lt=1, description="fraction of the tokens to hide")
        mean_span: float = Field(3.0, ge=1, description="mean length of a hidden span, in tokens")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if facts.lacks("sentinel_1"):
                text = "'span_corruption' requires at least two sentinel tokens; set sentinels: 100"
                yield Problem("sentinels", text, at="data.tokenizer.special_tokens")
