"""Causal language modelling: predict the next token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Baseline, Ids, ngram_baseline
from tfkit.training.objective.base import Loss, Objective, causal_loss
from tfkit.training.objective.rows import Batch, Example, Item, TextRows, logger, wrapped


class CausalRows(TextRows):
    """Blocks of the concatenated texts, or one row per text."""

    config: CausalLm.Config

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """Return items `text`, one token longer than their row: blocks of the stream, or framed texts."""
        self.bind(tokenizer)
        texts = self._encoded(examples, "text", tokenizer)
        full = [text for text in texts if len(text)]
        self._left_out(len(texts) - len(full), len(texts), "the text is empty")
        if not self.config.join:
            return self._rows(full, max_length)
        stream = self._stream(full)
        items: list[Item] = [{"text": block} for block in blocks(stream, self._block(max_length))]
        return self._usable(items, len(texts), f"a next token needs a stream of two tokens or more, got {len(stream)}")

    def _block(self, max_length: int | None) -> int:
        if self.config.block is None and max_length is None:
            raise UsageError(
                "causal_lm joins the texts and splits them into blocks; set objective.block, the tokens per row"
            )
        if self.config.block is not None and max_length is not None and self.config.block > max_length:
            raise UsageError(
                f"objective.block is {self.config.block}, but the model or data.batch.length allows {max_length} tokens"
            )
        return self.config.block or max_length or 0

    def _stream(self, texts: list[Ids]) -> Ids:
        """Concatenate the texts, separated by the end token."""
        end = self.tokens.special.get("end")
        if end is None and len(texts) > 1:
            logger.warning("causal_lm: the tokenizer has no end token, so texts are joined without a boundary")
        pieces = [wrapped(text, end=end) for text in texts[:-1]] + texts[-1:]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)

    def _rows(self, texts: list[Ids], max_length: int | None) -> list[Item]:
        rows = [self.tokens.framed(text) for text in texts]
        fitting: list[Item] = [
            {"text": row} for row in rows if len(row) >= 2 and (max_length is None or len(row) <= max_length + 1)
        ]
        why = f"shorter than 2 tokens or longer than {max_length} (join: true would split them)"
        self._left_out(len(rows) - len(fitting), len(rows), why)
        return self._usable(fitting, len(rows), why)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Pack as in TextRows. Raise UsageError for blocks, which are full."""
        if self.config.join:
            raise UsageError(
                "blocks of joined texts are already full and cannot be packed; set join: false or pack: false"
            )
        return super().collate_packed(rows, length, rng)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Return a prefix to continue; an empty one starts with the start token, or with end if texts are joined."""
        first = self.tokens.special.get("start" if not self.config.join else "end")
        return list(ids) if first is None or (self.config.join and ids) else [first, *ids]


@register("objective", "causal_lm")
class CausalLm(Objective):
    """Loss = -sum log p(token_t | token_<t) (Bengio et al. 2003; Radford et al. 2018)."""

    rows_type = CausalRows
    reads = "causal"
    capabilities = frozenset({"likelihood", "characters", "packing", "soft_targets"})

    class Config(Objective.Config):
        """Options of causal_lm."""

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
            """Check that the block length is defined and fits the model and a batch."""
            longest, block = facts.longest, self.block
            if block is None and longest is None and facts.reads_data and facts.blueprint is not None:
                text = "joined texts are split into rows; set block, the tokens per row, or model.max_length"
                yield Problem("block", text)
            if block is not None and longest is not None and block > longest.tokens:
                yield Problem("block", f"{block} exceeds the {longest.tokens} tokens of {longest.at}")
            rows = block or (longest.tokens if longest is not None else None)
            if rows is not None and facts.batch_tokens is not None and rows > facts.batch_tokens:
                text = f"a row of {rows} tokens does not fit in a batch of data.batch.tokens: {facts.batch_tokens}"
                yield Problem("block", f"{text}; use fewer tokens per row")
            if facts.packed:
                text = "blocks of joined texts are full and cannot be packed; set join: false, or pack: false"
                yield Problem("pack", text, at="data.batch")

    config: Config

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the cross-entropy over all real targets."""
        return causal_loss(model, batch, training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the loss of an n-gram model; joined texts are evaluated as one stream, with context across blocks."""
        train, valid = ([item["text"] for item in items] for items in (train_items, valid_items))
        if self.config.join:
            train, valid = [rejoined(train)], [rejoined(valid)]
        return ngram_baseline(train, valid, self.rows.tokens.size)


def blocks(stream: Ids, block: int) -> list[Ids]:
    """Split into rows of block + 1 tokens with stride `block`, so that each token but the first is a target once.

    The last row may be shorter.
    """
    return [stream[start : start + block + 1] for start in range(0, len(stream) - 1, block)]


def rejoined(rows: Sequence[Ids]) -> Ids:
    """Invert `blocks`."""
    return np.concatenate([row[:-1] for row in rows[:-1]] + list(rows[-1:]))
