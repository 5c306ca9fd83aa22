"""Sequence to sequence: predict the target from the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field

from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Dropout as Share
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.objective.base import Answers, Loss, Objective, counted_padding, finished, token_loss
from tfkit.training.objective.baseline import Baseline, Ids, ngram_baseline
from tfkit.training.objective.rows import (
    Batch,
    Example,
    Item,
    Items,
    Rows,
    TokenFacts,
    column,
    extra_of,
    mask_of,
    next_tokens,
    padded,
    sizes,
    vector_batch,
    wrapped,
)


class Seq2SeqRows(Rows):
    """Separate rows for source and target."""

    fields = ("source", "target")
    required = ("start", "end")
    vectors_for = "source"
    config: Seq2Seq.Config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to both tokenizers. Raise DataError if a required special token is missing."""
        super().bind(tokenizer)
        self._check_roles(tokenizer.source, self.config.source_roles())
        self.source = TokenFacts.of(tokenizer.source)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `source`, framed as configured, and `target` (start, tokens, end).

        The target is one token longer than its row.
        """
        self.bind(tokenizer)
        if self.plan is not None:
            return self._of_vectors(examples, tokenizer, max_length)
        sources = self._ids(examples, "source", tokenizer.source)
        targets = self._ids(examples, "target", tokenizer)
        read, written = sources.lengths + len(self.prompt([])), targets.lengths + 2
        full = (sources.lengths > 0) & (targets.lengths > 0)
        short = np.maximum(read, written - 1) <= (max_length or 2**62)
        kept = np.flatnonzero(full & short)
        start, end = self.tokens.special["start"], self.tokens.special["end"]
        extra = self.extra(examples)

        def item(place: int) -> Item:
            source = np.asarray(self.prompt(sources[kept[place]].tolist()), np.int32)
            return {"source": source, "target": wrapped(targets[kept[place]], start, end), **extra[kept[place]]}

        items = Items(item, {"source": read[kept], "target": written[kept]})
        count, empty, long = len(full), int((~full).sum()), int((full & ~short).sum())
        self._left_out(empty, count, "source or target is empty")
        self._left_out(long, count, f"longer than {max_length} tokens")
        return self._usable(items, count, f"{empty:,} are empty, {long:,} longer than {max_length} tokens")

    def _of_vectors(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `vectors`, `positions` and `target`."""
        targets = self._encoded(examples, "target", tokenizer)
        ends = self.tokens.special["start"], self.tokens.special["end"]
        found = [
            item | {"target": wrapped(target, *ends)}
            for item, target in zip(self.vectors(examples), targets, strict=True)
            if len(target) and (max_length is None or len(target) < max_length)
        ]
        why = f"the target is empty, or longer than {max_length} tokens"
        self._left_out(len(examples) - len(found), len(examples), why)
        return self._usable(found, len(examples), why)

    def lengths(self, items: Sequence[Item]) -> Ids:
        """Return the number of positions in encoder and decoder, [items 2]."""
        vectors = self.plan is not None
        read = np.asarray([int(item["positions"][0]) for item in items]) if vectors else sizes(items, "source")
        return np.stack((read, sizes(items, "target") - 1), axis=1)

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate `input_ids`, `decoder_input_ids`, and the masks of the padded ones."""
        if self.plan is not None:
            batch = next_tokens([item["target"] for item in items], self.tokens.pad, "decoder_")
            return batch | vector_batch([item["vectors"] for item in items])
        sources, targets = ([item[side] for item in items] for side in ("source", "target"))
        return pair_batch(sources, targets, self.tokens.pad, self.source.pad)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        special, config = self.source.special, self.config
        before = [special["start"]] if config.source_start else []
        return [*before, *ids, *([special["end"]] if config.source_end else [])]


class Translations(Answers):
    """Generated targets."""

    reference = "target"
    predicts = False
    metrics = ("perplexity", "bleu", "exact_match")


@register("objective", "seq2seq")
class Seq2Seq(Objective):
    """Loss = -sum log p(target_t | target_<t, source), with label smoothing (Vaswani et al. 2017, arXiv 1706.03762)."""

    rows_type = Seq2SeqRows
    answers_type = Translations
    reads = "encoder_decoder"
    gives = frozenset({"attention_mask", "inputs"})
    capabilities = frozenset(
        {"likelihood", "characters", "words", "continuations", "two_vocabularies", "shards", "soft_targets"}
    )

    class Config(Objective.Config):
        label_smoothing: Share = Field(
            0.0, description="fraction of the target probability spread over the vocabulary, in training only"
        )
        source_start: bool = Field(False, description="begin the source with the start token, like the target")
        source_end: bool = Field(True, description="end the source with the end token, like the target")

        def source_roles(self) -> tuple[str, ...]:
            return ("start",) * self.source_start + ("end",) * self.source_end

        def shortest(self, facts: RecipeFacts) -> int:
            return 2  # start and one token; the end token is a target, but not an input

    config: Config

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        out = model(
            input_ids=batch.get("input_ids"),
            inputs_embeds=batch.get("inputs_embeds"),
            attention_mask=batch.get("attention_mask"),
            decoder_input_ids=batch["decoder_input_ids"],
            with_heads=False,
            **counted_padding(model, batch, "decoder_"),
            **extra_of(batch),
        )
        total = token_loss(model, out.hidden, batch, self.config.label_smoothing if training else 0.0)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the loss of an n-gram model of the targets, ignoring the source."""
        train, valid = (column(items, "target") for items in (train_items, valid_items))
        return ngram_baseline(train, valid, self.rows.tokens.size, of="of the targets alone")


def pair_batch(sources: Sequence[Ids], targets: Sequence[Ids], pad: int, source_pad: int | None = None) -> Batch:
    """Collate source and target rows for teacher forcing of an encoder-decoder."""
    ids, real = padded(sources, pad if source_pad is None else source_pad)
    return next_tokens(targets, pad, "decoder_") | {"input_ids": torch.from_numpy(ids)} | mask_of(real)
