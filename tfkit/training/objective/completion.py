"""Causal language modelling, and completion: a decoder predicts the target after the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.encoder import Stream, TokenIds
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.objective.base import Answers, Loss, Objective, causal_loss
from tfkit.training.objective.baseline import TRAIN_LIMIT, VALID_LIMIT, Baseline, Ids, ngram_baseline
from tfkit.training.objective.rows import (
    Batch,
    Example,
    Item,
    Items,
    PackableRows,
    TextRows,
    column,
    logger,
    padded,
    sizes,
    wrapped,
)


class CompletionRows(PackableRows):
    """Rows of source, start, target, end; the start token separates prompt and completion."""

    fields = ("source", "target")
    required = ("start", "end")

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `source` and `target` (start, tokens, end).

        A row is one token shorter than source and target together.
        """
        self.bind(tokenizer)
        sources = self._ids(examples, "source", tokenizer)
        targets = self._ids(examples, "target", tokenizer)
        start, end = self.tokens.special["start"], self.tokens.special["end"]
        read, written = sources.lengths, targets.lengths + 2
        full, short = targets.lengths > 0, read + written - 1 <= (max_length or 2**62)
        kept = np.flatnonzero(full & short)
        extra = self.extra(examples)
        items = Items(
            lambda place: {
                **extra[kept[place]],
                "source": sources[kept[place]],
                "target": wrapped(targets[kept[place]], start, end),
            },
            {"source": read[kept], "target": written[kept]},
        )
        count, empty, long = len(full), int((~full).sum()), int((full & ~short).sum())
        self._left_out(empty, count, "the target is empty")
        self._left_out(long, count, f"source and target are longer than {max_length} tokens")
        return self._usable(items, count, f"{empty:,} are empty, {long:,} longer than {max_length} tokens")

    def lengths(self, items: Sequence[Item]) -> Ids:
        return sizes(items, "source") + sizes(items, "target") - 1

    def _batch(self, rows: Sequence[Sequence[Item]], length: int | None) -> Batch:
        inputs = [np.concatenate([ids for one in row for ids in (one["source"], one["target"][:-1])]) for row in rows]
        ids, _ = padded(inputs, self.tokens.pad, length)
        chosen = np.zeros(ids.shape, dtype=bool)
        for number, row in enumerate(rows):
            place = 0
            for item in row:
                after = place + len(item["source"]) + len(item["target"]) - 1
                chosen[number, place + len(item["source"]) : after] = True
                place = after
        labels = np.concatenate([item["target"][1:] for row in rows for item in row]).astype(np.int64)
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "predicted": torch.from_numpy(np.flatnonzero(chosen)),
        }

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return [*ids, self.tokens.special["start"]]


class Completions(Answers):
    """Generated targets."""

    reference = "target"
    predicts = False
    metrics = ("perplexity", "exact_match")


@register("objective", "completion")
class Completion(Objective):
    """Loss = -sum log p(target_t | source, target_<t) of a decoder (Radford et al. 2018; Ouyang et al. 2022)."""

    rows_type = CompletionRows
    answers_type = Completions
    reads = "causal"
    gives = frozenset({"inputs"})
    capabilities = frozenset(
        {"likelihood", "characters", "words", "continuations", "packing", "shards", "soft_targets"}
    )

    class Config(Objective.Config):
        def shortest(self, facts: RecipeFacts) -> int:
            return 3  # source, start and one token; the end token is a target, but not an input

    config: Config

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the cross-entropy over target tokens. The source is excluded from the loss."""
        return causal_loss(model, batch, training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the loss of an n-gram model of the targets, ignoring the source."""
        train, valid = (column(items, "target") for items in (train_items, valid_items))
        return ngram_baseline(train, valid, self.rows.tokens.size, of="of the targets alone")


class CausalRows(TextRows):
    """Rows that are blocks of the concatenated texts, or one row per text."""

    config: CausalLm.Config

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text`, a block of the stream or a framed text, one token longer than its row."""
        self.bind(tokenizer)
        ids = self._ids(examples, "text", tokenizer)
        self._left_out(int((ids.lengths == 0).sum()), len(ids), "the text is empty")
        if not self.config.join:
            return self._rows(ids, max_length, self.extra(examples))
        items = blocks(self._stream(ids), self._block(max_length))
        size = int(sizes(items, "text").sum()) if len(items) else int(ids.offsets[-1])
        return self._usable(items, len(ids), f"predicting the next token requires at least two tokens, got {size}")

    def _block(self, max_length: int | None) -> int:
        if self.config.block is None and max_length is None:
            raise UsageError(
                "causal_lm splits the joined texts into blocks; set objective.block, the number of tokens per row"
            )
        if self.config.block is not None and max_length is not None and self.config.block > max_length:
            allowed = f"the model or data.batch.length allows at most {max_length} tokens"
            raise UsageError(f"objective.block is {self.config.block}, but {allowed}")
        return self.config.block or max_length or 0

    def _stream(self, texts: TokenIds) -> Stream:
        """Concatenate the texts, separated by the end token."""
        stream = Stream(texts, self.tokens.special.get("end"))
        if stream.end is None and len(stream.full) > 1:
            logger.warning("causal_lm: the tokenizer has no end token, so texts are joined without a separator")
        return stream

    def _rows(self, texts: TokenIds, max_length: int | None, extra: Sequence[Item]) -> Sequence[Item]:
        full, fitting = int((texts.lengths > 0).sum()), self._rows_of(texts, max_length, extra)
        why = f"shorter than 2 tokens or longer than {max_length} (join: true would split them)"
        self._left_out(full - len(fitting), full, why)
        return self._usable(fitting, full, why)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Pack texts as TextRows does. Raise UsageError for blocks, which are already full."""
        if self.config.join:
            raise UsageError(
                "blocks of joined texts are already full and cannot be packed; set join: false or pack: false"
            )
        return super().collate_packed(rows, length, rng)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Prepend the start token to a prefix, or, with joined texts, the end token to an empty prefix."""
        first = self.tokens.special.get("start" if not self.config.join else "end")
        return list(ids) if first is None or (self.config.join and ids) else [first, *ids]


@register("objective", "causal_lm")
class CausalLm(Objective):
    """Loss = -sum log p(token_t | token_<t) (Bengio et al. 2003; Radford et al. 2018)."""

    rows_type = CausalRows
    reads = "causal"
    gives = frozenset({"inputs"})
    capabilities = frozenset({"likelihood", "characters", "packing", "shards", "soft_targets"})

    class Config(Objective.Config):
        join: bool = Field(
            True, description="join the texts into one stream, split into blocks; false: one row per text"
        )
        block: PositiveInt | None = Field(
            None, description="tokens per row of the stream; none: the model's maximum length"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if self.join:
                yield from self._blocks(facts)
            elif self.block is not None:
                yield Problem("block", "with join: false each text is a separate row; remove block")

        def _blocks(self, facts: RecipeFacts) -> Iterator[Problem]:
            """Check that the block length is known, and fits the model and a batch."""
            longest, block = facts.longest, self.block
            if facts.blueprint is not None and (names := ", ".join(facts.blueprint.extra_inputs)):
                text = f"the blocks of joined texts have no {names} of their own, which the model reads"
                yield Problem("join", f"{text}; set join: false")
            if block is None and longest is None and facts.reads_data and facts.blueprint is not None:
                text = "joined texts are split into rows; set block, the number of tokens per row, or model.max_length"
                yield Problem("block", text)
            if block is not None and longest is not None and block > longest.tokens:
                yield Problem("block", f"{block} exceeds the limit of {longest.tokens} tokens set by {longest.at}")
            rows = block or (longest.tokens if longest is not None else None)
            if rows is not None and facts.batch_tokens is not None and rows > facts.batch_tokens:
                text = f"a row of {rows} tokens does not fit in a batch of data.batch.tokens: {facts.batch_tokens}"
                yield Problem("block", f"{text}; use fewer tokens per row")
            if facts.packed:
                text = "blocks of joined texts are full and cannot be packed; set join: false, or pack: false"
                yield Problem("pack", text, at="data.batch")

    config: Config

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        return causal_loss(model, batch, training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the loss of an n-gram model. Joined texts are scored as one stream, with context across blocks."""
        train, valid = column(train_items, "text"), column(valid_items, "text")
        if not self.config.join:
            return ngram_baseline(train, valid, self.rows.tokens.size)
        begin, held_out = rejoined(train, TRAIN_LIMIT), rejoined(valid, VALID_LIMIT)
        return ngram_baseline([begin], [held_out], self.rows.tokens.size)


def blocks(stream: Stream, block: int) -> Items:
    """Split a stream into rows of block + 1 tokens with stride `block`. The last row may be shorter.

    Each token except the first is the target of exactly one row.
    """
    starts = np.arange(0, max(0, len(stream) - 1), block)
    lengths = np.minimum(starts + block + 1, len(stream)) - starts
    return Items(lambda row: {"text": stream.between(row * block, row * block + block + 1)}, {"text": lengths})


def rejoined(rows: Iterable[Ids], limit: int) -> Ids:
    """Invert `blocks` for about the first `limit` tokens."""
    pieces, size = [np.zeros(0, np.int32)], 0
    for row in rows:
        pieces[-1:] = [pieces[-1][:-1], row]
        size += len(row) - 1
        if size > limit:
            break
    return np.concatenate(pieces)
