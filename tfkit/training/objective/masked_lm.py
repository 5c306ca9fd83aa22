"""Masked language modelling: predict masked tokens; ranked fillings of masked texts."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.batches import by_length
from tfkit.data.encoder import TokenIds
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.base import continuations
from tfkit.functional.view import wide
from tfkit.generation.prompts import PromptError, without_token
from tfkit.generation.writer import GeneratedText
from tfkit.models import Model
from tfkit.training.objective.base import Answers, Loss, Objective, Prediction, finished, token_loss
from tfkit.training.objective.baseline import TRAIN_LIMIT, VALID_LIMIT, Baseline, Ids, evenly, unigram_baseline
from tfkit.training.objective.rows import (
    Batch,
    Example,
    Item,
    Items,
    Rows,
    check_tags,
    column,
    extra_batch,
    extra_of,
    mask_of,
    packed_places,
    padded,
    sizes,
)

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
    first, *others = _around(text, mask)
    return first + "".join(token + part for token, part in zip(tokens, others, strict=True))


def _around(text: str, mask: str) -> list[str]:
    """Split a text at its masks; a mask that is a number is a word."""
    edge = r"\b" if mask.isalnum() else ""
    return re.split(f"{edge}{re.escape(mask)}{edge}", text)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


PIECES = 2**16  # number of pieces scanned at once


class MaskedRows(Rows):
    """Framed texts with a new random mask in each batch."""

    fields = ("text",)
    required = ("mask",)
    config: MaskedLm.Config

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        super().__init__(config)
        self.maskable = np.zeros(0, dtype=np.bool_)  # by token id; False for special tokens
        self._inside = np.zeros(0, dtype=np.bool_)
        self._ordinary = np.zeros(0, dtype=np.int64)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to the tokenizer. Special tokens, unknown included, are neither masked nor used as replacements."""
        super().bind(tokenizer)
        self.maskable = np.ones(self.tokens.size, dtype=np.bool_)
        self.maskable[list(self.tokens.special.values())] = False
        self._ordinary = np.flatnonzero(self.maskable)
        if self.config.whole_words:
            self._inside = continuations(tokenizer)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text`, framed with the start and end tokens that exist. Long texts are split."""
        self.bind(tokenizer)
        ids, room = self._ids(examples, "text", tokenizer), self._room(max_length)
        starts, owners = _cut(ids, room)
        ends = np.minimum(starts + (room or 2**62), ids.offsets[owners + 1])
        kept = np.flatnonzero(self._has_target(ids, starts))
        dropped = len(ids) - len(np.unique(owners)) + len(starts) - len(kept)
        starts, ends = starts[kept], ends[kept]
        frame = len(self.tokens.framed(np.zeros(0, np.int32)))
        extra, owners = self.extra(examples), owners[kept]
        items = Items(
            lambda place: {
                "text": self.tokens.framed(ids.between(int(starts[place]), int(ends[place]))),
                **extra[owners[place]],
            },
            {"text": ends - starts + frame},
        )
        why = "the text is empty, or has only unknown tokens"
        self._left_out(dropped, len(ids), why)
        return self._usable(items, len(ids), why)

    def _has_target(self, ids: TokenIds, starts: Ids) -> NDArray[np.bool_]:
        """Mask of the pieces that contain a maskable token. Pieces are consecutive."""
        found = [np.zeros(0, np.bool_)]
        for first in range(0, len(starts), PIECES):
            some = starts[first : first + PIECES]
            stop = starts[first + PIECES] if first + PIECES < len(starts) else ids.offsets[-1]
            found.append(np.logical_or.reduceat(self.maskable[ids.tokens[some[0] : stop]], some - some[0]))
        return np.concatenate(found)

    def _room(self, max_length: int | None) -> int | None:
        """Return the number of text tokens that fit in a row between start and end."""
        if max_length is None:
            return None
        room = max_length - ("start" in self.tokens.special) - ("end" in self.tokens.special)
        if room < 1:
            raise DataError(
                f"rows of {max_length} tokens are too short for a text between start and end tokens; allow longer rows"
            )
        return room

    def lengths(self, items: Sequence[Item]) -> Ids:
        return sizes(items, "text")

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate masked `input_ids`, `labels`, their positions `predicted`, and `attention_mask` if padded."""
        ids, real = padded([item["text"] for item in items], self.tokens.pad)
        return self._hide(ids, real, rng) | mask_of(real)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Pack several texts per row. `position_ids` restart per text, `segment_ids` separate texts and padding."""
        positions, segments = packed_places([[len(item["text"]) for item in row] for row in rows], length)
        ids, real = padded([np.concatenate([item["text"] for item in row]) for row in rows], self.tokens.pad, length)
        places = {"position_ids": torch.from_numpy(positions), "segment_ids": torch.from_numpy(segments)}
        return self._hide(ids, real, rng) | places

    def _hide(self, ids: Ids, real: NDArray[np.bool_], rng: np.random.Generator) -> Batch:
        """Choose at least one position per row and corrupt the chosen tokens. `ids` and `real` are [rows length]."""
        draw: NDArray[np.float64] = np.zeros(ids.shape)
        draw[real] = rng.random(np.count_nonzero(real))  # draws do not depend on the amount of padding
        if self.config.whole_words:  # all tokens of a word share the draw of its first token
            begins = np.where(self._inside[ids], 0, np.arange(ids.shape[1]))
            draw = np.take_along_axis(draw, np.maximum.accumulate(begins, axis=1), axis=1)
        draw[~(real & self.maskable[ids])] = 2.0
        chosen = draw < self.config.probability
        chosen |= (draw == draw.min(axis=1, keepdims=True)) & (draw < 1) & ~chosen.any(axis=1, keepdims=True)
        labels = ids[chosen]
        fate = rng.random(labels.shape)
        strangers = rng.choice(self._ordinary, size=labels.shape)
        replaced = np.where(fate < self.config.mask_share + self.config.random_share, strangers, labels)
        hidden = ids.copy()
        hidden[chosen] = np.where(fate < self.config.mask_share, self.tokens.special["mask"], replaced)
        batch = {"input_ids": hidden, "labels": labels, "predicted": np.flatnonzero(chosen)}
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def read(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Encode texts, with a mask for each mask token in them."""
        mask = self.tokens.special["mask"]
        texts_around = [_around(text, tokenizer.token(mask)) for text in texts]
        if tokenizer.kmers and (masked := [number for number, parts in enumerate(texts_around, 1) if len(parts) > 1]):
            raise PromptError("text", masked[0], "cannot have a mask: overlapping k-mers share its letters")
        # if tokens include the preceding space, the mask replaces both the word and the space
        joins = False
        with contextlib.suppress(DataError):  # ids, and vocabularies without the letter a, refuse these texts
            joins = len(tokenizer.encode(" a")) > len(tokenizer.encode("a"))
        for parts in texts_around:
            parts[:-1] = [part.removesuffix(" ") for part in parts[:-1]]
            parts[1:] = [part.removeprefix(" ") if joins else part for part in parts[1:]]
        pieces = iter(tokenizer.encode_batch([part for parts in texts_around for part in parts]))
        found = [list(chain(next(pieces), *([mask, *next(pieces)] for _ in parts[1:]))) for parts in texts_around]
        check_tags(found, tokenizer, texts)
        return [self.prompt(ids) for ids in found]

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Add the start and end tokens that exist."""
        text = np.asarray(ids, dtype=np.int32)
        return [int(id_) for id_ in self.tokens.framed(text)]


class Fills(Answers):
    """The most likely tokens for each mask of a text."""

    rows: MaskedRows

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return for each text the ranked `fills` of its masks, with probabilities, and the `filled` text.

        Raise UsageError for texts that are too long or have no mask.
        """
        mask = tokenizer.token(self.rows.tokens.special["mask"])
        longest = model.blueprint.last.max_length
        texts = [example["text"] for example in examples]
        for number, text in enumerate(texts, 1):
            if len(_around(text, mask)) < 2:
                raise PromptError("text", number, f"has no mask; replace a word with {mask}, got {text[:60]!r}")
        rows = [np.asarray(ids, dtype=np.int32) for ids in self.rows.read(texts, tokenizer)]
        for number, ids in enumerate(rows, 1):
            if longest is not None and len(ids) > longest:
                what = f"of {len(ids)} tokens exceeds the model's maximum length of {longest}"
                raise PromptError("text", number, what)
        predictions: list[Prediction] = [{}] * len(rows)
        extra = self.rows.extra(examples)
        with torch.inference_mode():
            for together in by_length([len(row) for row in rows], next(model.parameters()).device.type):
                own = extra_batch([extra[row] for row in together])
                found = self._fills(model, [rows[row] for row in together], tokenizer, own)
                for row, fills in zip(together, found, strict=True):
                    text = examples[row]["text"]
                    best = filled(text, mask, [fill[0]["token"] for fill in fills])
                    predictions[row] = {"text": text, "fills": fills, "filled": best}
        return predictions

    def _fills(
        self, model: Model, rows: Sequence[Ids], tokenizer: Tokenizer, extra: Batch
    ) -> list[list[list[dict[str, Any]]]]:
        """Return the most likely tokens for each mask of each row."""
        ids, real = padded(rows, self.rows.tokens.pad)
        device = next(model.parameters()).device
        masked = torch.from_numpy(ids == self.rows.tokens.special["mask"]).to(device)
        whole = None if real.all() else torch.from_numpy(real).to(device)
        read = torch.from_numpy(ids).to(device)
        out = model(input_ids=read, attention_mask=whole, with_heads=False, **extra_of(extra))
        logits = wide(model.head_of_last(out.hidden[masked]))  # [masks vocab_size]
        never = without_token(tokenizer, logits.shape[-1])
        tokens = logits.shape[-1] - (0 if never is None else int(never.sum()))
        probabilities = (logits if never is None else logits.masked_fill(never.to(device), -torch.inf)).softmax(-1)
        best = probabilities.topk(min(FILLS, tokens), dim=-1)
        found = iter(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        fills = []
        for count in masked.sum(dim=1).tolist():
            places = [next(found) for _ in range(count)]
            fills.append([_named(tokenizer, *place) for place in places])
        return fills


@register("objective", "masked_lm")
class MaskedLm(Objective):
    """Loss = -sum over chosen positions of log p(token | the rest), 80/10/10 (Devlin et al. 2018, arXiv 1810.04805)."""

    rows_type: ClassVar[type[MaskedRows]] = MaskedRows
    answers_type: ClassVar[type[Answers] | None] = Fills
    reads = "bidirectional"
    heads: ClassVar[tuple[str, ...]] = ("masked_lm", "language_model")
    gives = frozenset({"attention_mask", "inputs"})
    capabilities = frozenset({"likelihood", "packing", "shards", "soft_targets"})

    class Config(Objective.Config):
        probability: PositiveFloat = Field(0.15, le=1, description="fraction of the tokens to predict")
        mask_share: float = Field(
            0.8, ge=0, le=1, description="fraction of the predicted tokens replaced by the mask token"
        )
        random_share: float = Field(
            0.1,
            ge=0,
            le=1,
            description="fraction of the predicted tokens replaced by a random token; the rest stay unchanged",
        )

        whole_words: bool = Field(False, description="predict all tokens of a word or none")

        def shortest(self, facts: RecipeFacts) -> int:
            return 1 + bool(facts.token("start")) + bool(facts.token("end"))

        @model_validator(mode="after")
        def _shares(self) -> MaskedLm.Config:
            both = self.mask_share + self.random_share
            if both > 1 + 1e-9:
                raise ValueError(
                    f"mask_share and random_share add up to {both:g}, but must not exceed 1 in total; lower one of them"
                )
            return self

    config: Config
    rows: MaskedRows

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the cross-entropy at the chosen positions. Logits are not computed elsewhere."""
        out = model(
            input_ids=batch["input_ids"],
            attention_mask=batch.get("attention_mask"),
            position_ids=batch.get("position_ids"),
            segment_ids=batch.get("segment_ids"),
            with_heads=False,
            **extra_of(batch),
        )
        total = token_loss(model, out.hidden, batch)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the scores of a baseline that predicts the token frequencies of the training texts."""
        train = np.concatenate(evenly(column(train_items, "text"), TRAIN_LIMIT)[:])
        valid = np.concatenate(evenly(column(valid_items, "text"), VALID_LIMIT)[:])
        return unigram_baseline(
            train[self.rows.maskable[train]], valid[self.rows.maskable[valid]], self.rows.tokens.size
        )


def _cut(texts: TokenIds, room: int | None) -> tuple[Ids, Ids]:
    """Split texts into pieces of at most `room` ids. Return the offset and the text index of each piece."""
    pieces = (texts.lengths > 0).astype(np.int64) if room is None else -(-texts.lengths // room)
    owners = np.repeat(np.arange(len(texts)), pieces)
    first = np.cumsum(pieces) - pieces  # index of each text's first piece
    return texts.offsets[owners] + (np.arange(len(owners)) - first[owners]) * (room or 0), owners


def _named(tokenizer: Tokenizer, ids: Sequence[int], probabilities: Sequence[float]) -> list[dict[str, Any]]:
    """Return the text, id and probability of each token."""
    texts = (tokenizer.decode([id_]).strip() or tokenizer.readable_token(id_) for id_ in ids)
    named = zip(texts, ids, probabilities, strict=True)
    return [{"token": text, "id": id_, "probability": chance} for text, id_, chance in named]
