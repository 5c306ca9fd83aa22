"""Write a text again that was spoiled."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.training.baseline import Ids
from tfkit.training.objective.base import wrapped
from tfkit.training.objective.rewriting import Rewriting

SENTENCE_ENDS = (".", "!", "?")


@register("objective", "denoising")
class Denoising(Rewriting):
    """Loss = -log p(text | spoiled text): spans become one mask each, sentences are shuffled (Lewis et al. 2019: BART).

    The lengths of the spans are Poisson distributed; one of length 0 puts a mask in where nothing is lost. A sentence
    ends with a token that ends in a full stop, a question mark or an exclamation mark. arXiv 1910.13461.
    """

    required: ClassVar = ("start", "end", "mask")

    class Config(Rewriting.Config):
        """Options of denoising."""

        probability: float = Field(0.3, ge=0, lt=1, description="share of the tokens that masks hide")
        mean_span: float = Field(3.0, ge=1, description="mean length of a hidden span, in tokens")
        shuffle: bool = Field(True, description="put the sentences of a text in another order")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.probability, self.mean_span, self.shuffle = config.probability, config.mean_span, config.shuffle
        self._ends = np.zeros(0, dtype=np.bool_)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Take the facts of the tokenizer, and which tokens end a sentence."""
        super().bind(tokenizer)
        self._ends = np.zeros(self.vocab_size, dtype=np.bool_)
        if self.shuffle:
            vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
            self._ends[[id_ for token, id_ in vocabulary.items() if token.endswith(SENTENCE_ENDS)]] = True

    def _budget(self, length: int) -> int:
        """How many of `length` tokens are hidden."""
        return round(length * self.probability)

    def places(self, length: int) -> tuple[int, int]:
        """The source has no more masks than hidden tokens, so that it is no longer than the text between its ends."""
        return length + 2, length + 1

    def spoiled(self, text: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """The text with spans hidden, its sentences shuffled; and the text as it was."""
        start, end = self.special["start"], self.special["end"]
        moved = self._shuffled(text, rng) if self.shuffle else text
        return wrapped(self._hidden(moved, rng), start, end), wrapped(text, start, end)

    def _shuffled(self, text: Ids, rng: np.random.Generator) -> Ids:
        sentences = np.split(text, np.flatnonzero(self._ends[text[:-1]]) + 1)
        return np.concatenate([sentences[place] for place in rng.permutation(len(sentences))])

    def _hidden(self, text: Ids, rng: np.random.Generator) -> Ids:
        """Spans of the text replaced by one mask each, until the budget is spent; it never grows longer."""
        mask, budget = self.special["mask"], self._budget(len(text))
        lost = np.zeros(len(text), dtype=np.bool_)
        masks = np.zeros(len(text), dtype=np.bool_)  # a mask stands before this token
        spare = 0
        while budget > 0:
            length = min(int(rng.poisson(self.mean_span)), budget)
            place = int(rng.integers(len(text)))
            span = slice(place, min(place + length, len(text)))
            if (length == 0 and not spare) or masks[place] or lost[span].any():
                budget -= 1  # it would add to the text, or there is a span here: a little less is hidden
                continue
            masks[place] = True
            lost[span] = True
            spare += max(0, span.stop - place - 1) - (length == 0)
            budget -= max(1, length)
        pieces = [[mask] * bool(masks[at]) + [int(text[at])] * (not lost[at]) for at in range(len(text))]
        return np.asarray([id_ for piece in pieces for id_ in piece], dtype=np.int32)

    def prompt(self, ids: list[int]) -> list[int]:  # type: ignore[override]
        """A source for the encoder, between start and end as in training."""
        return [self.special["start"], *ids, self.special["end"]]
