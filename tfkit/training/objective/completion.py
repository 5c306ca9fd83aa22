"""Completion: a decoder predicts the target after the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Baseline, Ids, ngram_baseline
from tfkit.training.objective.base import Answers, Loss, Objective, causal_loss
from tfkit.training.objective.rows import (
    Batch,
    Example,
    Item,
    Items,
    PackableRows,
    column,
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
        items = Items(
            lambda place: {
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
        """Return the row length of each item, [items]."""
        return sizes(items, "source") + sizes(items, "target") - 1

    def _batch(self, rows: Sequence[Sequence[Item]], length: int | None) -> Batch:
        inputs = [np.concatenate([_row(item)[:-1] for item in row]) for row in rows]
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
        """Append the start token to a source."""
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
    capabilities = frozenset(
        {"likelihood", "characters", "words", "continuations", "packing", "shards", "soft_targets"}
    )

    class Config(Objective.Config):
        """Options of completion."""

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


def _row(item: Item) -> np.ndarray[Any, Any]:
    return np.concatenate([item["source"], item["target"]])
