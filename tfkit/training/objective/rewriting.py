"""Base classes of objectives that corrupt a text and train an encoder-decoder to restore it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Ids
from tfkit.training.objective.base import Loss, Objective, counted_padding, finished, token_loss
from tfkit.training.objective.rows import Batch, Example, Item, Rows
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
        """Frame a source for the encoder."""
        return [*ids, self.tokens.special["end"]]


class Rewriting(Objective):
    """Loss = -sum log p(target_t | target_<t, source), with source and target derived from the same text."""

    reads = "encoder_decoder"
    gives = frozenset({"attention_mask"})
    capabilities = frozenset({"likelihood", "soft_targets"})

    class Config(Objective.Config):
        """Options of objectives that corrupt texts."""

        def shortest(self, facts: RecipeFacts) -> int:
            return 4  # a text of two tokens, with start and end

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the cross-entropy over target tokens."""
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
