"""Denoising: reconstruct a text from a corrupted version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tfkit.core.registry import register
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.training.baseline import Ids
from tfkit.training.objective.rewriting import Rewriting, RewritingRows
from tfkit.training.objective.rows import Item, wrapped

SENTENCE_ENDS = (".", "!", "?")


class DenoisingRows(RewritingRows):
    """Rows whose source is the text with masked spans and shuffled sentences."""

    required = ("start", "end", "mask")
    config: Denoising.Config

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        super().__init__(config)
        self._ends = np.zeros(0, dtype=np.bool_)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to the tokenizer and find the tokens that end a sentence."""
        super().bind(tokenizer)
        self._ends = np.zeros(self.tokens.size, dtype=np.bool_)
        if self.config.shuffle:
            vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
            self._ends[[id_ for token, id_ in vocabulary.items() if token.endswith(SENTENCE_ENDS)]] = True

    def _budget(self, length: int) -> int:
        """Return the number of tokens to hide."""
        return round(length * self.config.probability)

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """Return row lengths [items 2]. The corrupted source is never longer than the framed text."""
        return np.asarray([(len(item["text"]) + 2, len(item["text"]) + 1) for item in items])

    def spoiled(self, text: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the text with masked spans and shuffled sentences, and the original."""
        start, end = self.tokens.special["start"], self.tokens.special["end"]
        moved = self._shuffled(text, rng) if self.config.shuffle else text
        return wrapped(self._hidden(moved, rng), start, end), wrapped(text, start, end)

    def _shuffled(self, text: Ids, rng: np.random.Generator) -> Ids:
        sentences = np.split(text, np.flatnonzero(self._ends[text[:-1]]) + 1)
        return np.concatenate([sentences[place] for place in rng.permutation(len(sentences))])

    def _hidden(self, text: Ids, rng: np.random.Generator) -> Ids:
        """Replace spans with one mask each until the budget is spent, without lengthening the text."""
        mask, budget = self.tokens.special["mask"], self._budget(len(text))
        lost = np.zeros(len(text), dtype=np.bool_)
        masks = np.zeros(len(text), dtype=np.bool_)  # insert a mask before this token
        spare = 0
        while budget > 0:
            length = min(int(rng.poisson(self.config.mean_span)), budget)
            place = int(rng.integers(len(text)))
            span = slice(place, min(place + length, len(text)))
            if (length == 0 and not spare) or masks[place] or lost[span].any():
                budget -= 1  # would lengthen the text or overlap a span: hide slightly fewer tokens instead
                continue
            masks[place] = True
            lost[span] = True
            spare += max(0, span.stop - place - 1) - (length == 0)
            budget -= max(1, length)
        pieces = [[mask] * bool(masks[at]) + [int(text[at])] * (not lost[at]) for at in range(len(text))]
        return np.asarray([id_ for piece in pieces for id_ in piece], dtype=np.int32)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Frame a source as in training."""
        return [self.tokens.special["start"], *ids, self.tokens.special["end"]]


@register("objective", "denoising")
class Denoising(Rewriting):
    """Loss = -log p(text | corrupted text), with masked spans and shuffled sentences (Lewis et al. 2019: BART).

    Span lengths are Poisson distributed; a span of length 0 inserts a mask. A sentence ends with a token that ends in a
    full stop, a question mark or an exclamation mark. arXiv 1910.13461.
    """

    rows_type = DenoisingRows

    class Config(Rewriting.Config):
        """Options of denoising."""

        probability: float = Field(0.3, ge=0, lt=1, description="fraction of the tokens to mask")
        mean_span: float = Field(3.0, ge=1, description="mean length of a masked span, in tokens")
        shuffle: bool = Field(True, description="shuffle the sentences of a text")
