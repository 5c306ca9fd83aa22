"""Objectives that corrupt a text and train an encoder-decoder to restore it: denoising, span corruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.backend import SENTINEL
from tfkit.models import Model
from tfkit.training.objective.base import Loss, Objective, counted_padding, finished, token_loss
from tfkit.training.objective.baseline import Ids
from tfkit.training.objective.rows import Batch, Example, Item, Rows, wrapped
from tfkit.training.objective.seq2seq import pair_batch


class RewritingRows(Rows):
    """Source and target rows derived from the same text, with new randomness in each batch.

    Subclasses implement `spoiled`, which creates both, and `lengths` [items 2], upper bounds of their row lengths.
    """

    fields = ("text",)
    required: ClassVar[tuple[str, ...]] = ("start", "end")

    def spoiled(self, text: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the encoder's input and the decoder's target (start, tokens, end)."""
        raise NotImplementedError(f"{type(self).__name__} has no spoiled")

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` without special tokens. Long texts are split, texts of a single token dropped."""
        self.bind(tokenizer)
        texts = self._encoded(examples, "text", tokenizer)
        room = max(map(len, texts), default=0) if max_length is None else self._room(max_length)
        pieces = [text[at : at + room] for text in texts for at in range(0, len(text), max(1, room))]
        items: list[Item] = [{"text": piece} for piece in pieces if len(piece) > 1]
        why = "the text has fewer than two tokens"
        self._left_out(sum(len(text) < 2 for text in texts), len(texts), why)
        return self._usable(items, len(texts), why)

    def _room(self, longest: int) -> int:
        """Return the maximum text length for which both source and target fit in a row."""
        room = longest
        while room > 1 and self.lengths([{"text": np.zeros(room, np.int32)}]).max() > longest:
            room -= 1
        if room < 2:
            raise DataError(f"rows of {longest} tokens are too short for {self._name}; allow longer rows")
        return room

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate `input_ids`, `decoder_input_ids`, and the masks of the padded ones."""
        pairs = [self.spoiled(item["text"], rng) for item in items]
        return pair_batch([source for source, _ in pairs], [target for _, target in pairs], self.tokens.pad)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return [*ids, self.tokens.special["end"]]


class Rewriting(Objective):
    """Loss = -sum log p(target_t | target_<t, source), with source and target derived from the same text."""

    reads = "encoder_decoder"
    gives = frozenset({"attention_mask"})
    capabilities = frozenset({"likelihood", "soft_targets"})

    class Config(Objective.Config):
        def shortest(self, facts: RecipeFacts) -> int:
            return 4  # a text of two tokens, with start and end

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        out = model(
            input_ids=batch["input_ids"],
            attention_mask=batch.get("attention_mask"),
            decoder_input_ids=batch["decoder_input_ids"],
            with_heads=False,
            **counted_padding(model, batch, "decoder_"),
        )
        total = token_loss(model, out.hidden, batch)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)


def random_split(total: int, parts: int, rng: np.random.Generator) -> Ids:
    """Draw a uniform composition of `total` into `parts` positive integers."""
    borders = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(np.concatenate(([0], borders, [total])))


SENTENCE_ENDS = (".", "!", "?")


class DenoisingRows(RewritingRows):
    """Rows whose source is the text with masked spans and shuffled sentences."""

    required = ("start", "end", "mask")
    config: Denoising.Config

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        super().__init__(config)
        self._ends = np.zeros(0, dtype=np.bool_)

    def bind(self, tokenizer: Tokenizer) -> None:
        super().bind(tokenizer)
        self._ends = np.zeros(self.tokens.size, dtype=np.bool_)
        if self.config.shuffle:
            vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
            self._ends[[id_ for token, id_ in vocabulary.items() if token.endswith(SENTENCE_ENDS)]] = True

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
        mask, budget = self.tokens.special["mask"], round(len(text) * self.config.probability)
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
        return [self.tokens.special["start"], *ids, self.tokens.special["end"]]


@register("objective", "denoising")
class Denoising(Rewriting):
    """Loss = -log p(text | corrupted text), with masked spans and shuffled sentences (Lewis et al. 2019: BART).

    Span lengths are Poisson distributed; a span of length 0 inserts a mask. A sentence ends with a token that ends in a
    full stop, a question mark or an exclamation mark. arXiv 1910.13461.
    """

    rows_type = DenoisingRows

    class Config(Rewriting.Config):
        probability: float = Field(0.3, ge=0, lt=1, description="fraction of the tokens to mask")
        mean_span: float = Field(3.0, ge=1, description="mean length of a masked span, in tokens")
        shuffle: bool = Field(True, description="shuffle the sentences of a text")


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
        probability: float = Field(0.15, gt=0, lt=1, description="fraction of the tokens to hide")
        mean_span: float = Field(3.0, ge=1, description="mean length of a hidden span, in tokens")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if facts.lacks("sentinel_1"):
                text = "'span_corruption' requires at least two sentinel tokens; set sentinels: 100"
                yield Problem("sentinels", text, at="data.tokenizer.special_tokens")
