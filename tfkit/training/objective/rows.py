"""Base classes of rows: examples become items of token ids, and items become batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.output import counted
from tfkit.core.slots import ObjectiveFacts, RowsFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.vectors import Array, Vectors
from tfkit.training.baseline import Ids

logger = logging.getLogger("tfkit")

Item = dict[str, Ids]  # token ids of one training example, by name
Batch = dict[str, Tensor]  # what the loss needs; on the CPU until the training loop moves it
Example = Mapping[str, str]

ENCODED_AT_ONCE = 10_000  # texts; bounds the memory that the tokenizer's own objects take


@dataclass(frozen=True)
class TokenFacts:
    """What rows know of a tokenizer: the ids of its special tokens by role, and the size of its vocabulary."""

    special: Mapping[str, int] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenFacts:
        """The facts of a tokenizer."""
        return cls(dict(tokenizer.special_ids), tokenizer.vocab_size)

    @property
    def pad(self) -> int:
        """What fills rows up. Any id would do, since no loss is taken on it and no real token sees it."""
        return self.special.get("pad", 0)

    def framed(self, text: Ids) -> Ids:
        """A text between the start and the end token, as far as there are such tokens."""
        return wrapped(text, self.special.get("start"), self.special.get("end"))


class Rows(RowsFacts):
    """Base of what objectives make of texts. `bind` (or `prepare`, which calls it) comes before everything else."""

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        """Take the options of the objective."""
        self.config = config
        self.tokens = TokenFacts()
        self.labels: tuple[str, ...] = ()  # of the training corpus, where it is `labelled`
        self.plan: StackPlan | None = None  # the stack that reads vectors instead of tokens

    def read_model(self, blueprint: Blueprint) -> None:
        """Read vectors instead of tokens if the model's first stack does."""
        plan = next(blueprint.stacks())
        if self.vectors_for is not None and plan.reads_vectors:
            self.plan, self.fields = plan, self.read_fields(("vectors",))  # type: ignore[misc]

    def bind(self, tokenizer: Tokenizer) -> None:
        """Take the facts of the tokenizer; raises DataError when a special token that is needed is missing."""
        self._check_roles(tokenizer, self.required)
        self.tokens = TokenFacts.of(tokenizer)

    def _check_roles(self, tokenizer: Tokenizer, required: Sequence[str]) -> None:
        missing = [role for role in required if role not in tokenizer.special_ids]
        if missing:
            there = ", ".join(tokenizer.special_ids) or "none"
            raise DataError(
                f"{self._name} needs a special token for {' and '.join(missing)}; the tokenizer has {there}. "
                f"Name one in the tokenizer's special_tokens, such as {{{missing[0]}: <{missing[0]}>}}"
            )

    @property
    def _name(self) -> str:
        """The name of the objective, for messages."""
        return self.config.part.part_name

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """The examples as token ids, none longer than the model can read.

        Logs what is left out and why; raises DataError when nothing is left, or a field is missing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no prepare")

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """The number of positions that each item takes in the model, [items] or [items sides]."""
        raise NotImplementedError(f"{type(self).__name__} has no lengths")

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """A batch of one row per item; all that is random in it comes from `rng`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """A batch of several items per row of `length`, kept apart by segments; raises UsageError where it cannot."""
        raise UsageError(f"batches of {self._name} cannot be packed; say data.batch.pack: false")

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text in the form that a trained model expects."""
        return list(ids)

    def labels_in(self, example: Example) -> Sequence[str]:
        """The labels that an example has, where it learns labels."""
        return ()

    def _column(self, examples: Sequence[Example], field: str) -> list[str]:
        """One field of all examples; raises DataError where an example lacks it."""
        for number, example in enumerate(examples, 1):
            if field not in example:
                there = ", ".join(example) or "nothing"
                raise ExampleError(number, f"{self._name} reads {' and '.join(self.fields)}; it has {there}")
        return [example[field] for example in examples]

    def _encoded(self, examples: Sequence[Example], field: str, tokenizer: Tokenizer) -> list[Ids]:
        """Token ids of one field of all examples; raises DataError where an example lacks it."""
        texts = self._column(examples, field)
        slices = (texts[start : start + ENCODED_AT_ONCE] for start in range(0, len(texts), ENCODED_AT_ONCE))
        with located(texts, tokenizer):
            return [np.asarray(ids, dtype=np.int32) for part in slices for ids in tokenizer.encode_batch(part)]

    def vectors(self, examples: Sequence[Example]) -> list[Item]:
        """Items `vectors` and `positions`, the number that they take; raises ExampleError for what does not fit."""
        plan = self.plan
        if plan is None:
            raise UsageError(f"{self._name} reads vectors for a model whose first stack does")
        items: list[Item] = []
        pictures = plan.embedding is not None and plan.embedding.part.reads_pictures
        for number, name in enumerate(self._column(examples, "vectors"), 1):
            if not isinstance(name, Vectors):
                raise ExampleError(number, f"{name!r} is a text, and this model reads vectors")
            array = name.array[..., None] if pictures and name.array.ndim == 2 else name.array
            if pictures and items and array.shape != items[0]["vectors"].shape:
                sizes = [list(one.shape) for one in (array, items[0]["vectors"])]
                raise ExampleError(number, f"a picture of shape {sizes[0]}, and the first has {sizes[1]}; use one size")
            try:
                positions = length_of(plan, array.shape)
            except ValueError as error:
                raise ExampleError(number, str(error)) from None
            longest = positions if plan.max_length is None else plan.max_length
            if positions > longest or (pictures and positions != longest):  # a picture of another size is another grid
                text = f"takes {positions:,} positions, and the {plan.side}'s max_length is {plan.max_length:,}"
                raise ExampleError(number, f"{text}; set max_length: {positions}")
            items.append({"vectors": array, "positions": np.asarray([positions])})
        return items

    def _usable(self, items: list[Item], examples: int, why: str) -> list[Item]:
        """`items`; raises DataError when there are none."""
        if not items:
            raise DataError(f"{self._name}: not one of {counted(examples, 'example')} can be used: {why}")
        return items

    def _left_out(self, number: int, of: int, why: str) -> None:
        """Log that examples were left out."""
        if number:
            logger.warning("%s: %s of %s left out: %s", self._name, f"{number:,}", counted(of, "example"), why)


class TextRows(Rows):
    """Each text is a row between start and end, as far as the tokenizer has them; each token predicts the next."""

    fields = ("text",)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """Items `text`, one token longer than their row."""
        self.bind(tokenizer)
        texts = self._encoded(examples, "text", tokenizer)
        rows = [self.tokens.framed(text) for text in texts if len(text)]
        longest = None if max_length is None else max_length + 1
        items: list[Item] = [{"text": row} for row in rows if 2 <= len(row) <= (longest or len(row))]
        why = "the text is empty, or has a single token"
        if longest is not None:
            why = f"the text is empty, or its row is shorter than 2 tokens or longer than {longest}"
        self._left_out(len(texts) - len(items), len(texts), why)
        return self._usable(items, len(texts), why)

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """[items]: positions in the model."""
        return np.asarray([len(item["text"]) - 1 for item in items])

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """`input_ids`, `labels` and the positions `predicted`."""
        return next_tokens([item["text"] for item in items], self.tokens.pad)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """The same with several texts per row: `position_ids` restart, `segment_ids` keep them apart."""
        positions, segments = packed_places([[len(item["text"]) - 1 for item in row] for row in rows], length)
        ids, real = padded(
            [np.concatenate([item["text"][:-1] for item in row]) for row in rows], self.tokens.pad, length
        )
        labels = np.concatenate([item["text"][1:] for row in rows for item in row]).astype(np.int64)
        batch = {"input_ids": ids, "position_ids": positions, "segment_ids": segments, "labels": labels}
        if not real.all():
            batch["predicted"] = np.flatnonzero(real)
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A beginning to continue, after the start token where there is one."""
        start = self.tokens.special.get("start")
        return list(ids) if start is None else [start, *ids]


@contextlib.contextmanager
def located(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[None]:
    """Raise ExampleError for the first of the texts that the tokenizer cannot write, where it could not write all."""
    try:
        yield
    except DataError:
        for number, text in enumerate(texts, 1):
            try:
                tokenizer.encode(text)
            except DataError as error:
                raise ExampleError(number, str(error)) from None
        raise


def length_of(plan: StackPlan, sizes: Sequence[int]) -> int:
    """Positions that an array of these sizes takes in a stack; raises ValueError for one that it cannot read."""
    if plan.embedding is not None:
        return plan.embedding.length_of(sizes, plan.shape())
    if len(sizes) != 2 or sizes[1] != plan.d_model:
        raise ValueError(f"the model reads vectors [time {plan.d_model}], got shape {list(sizes)}")
    return sizes[0]


def vector_batch(arrays: Sequence[Array]) -> Batch:
    """`inputs_embeds`, and `attention_mask` if the arrays are of different lengths."""
    batch = {"inputs_embeds": pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True)}
    lengths = torch.tensor([len(array) for array in arrays])
    if lengths.min() < lengths.max():
        batch["attention_mask"] = torch.arange(int(lengths.max())) < lengths[:, None]
    return batch


def wrapped(ids: Ids, start: int | None = None, end: int | None = None) -> Ids:
    """`ids` between the special tokens that there are."""
    before = [] if start is None else [start]
    after = [] if end is None else [end]
    return np.concatenate((np.asarray(before, np.int32), ids, np.asarray(after, np.int32)))


def padded(
    rows: Sequence[Ids], fill: int, length: int | None = None
) -> tuple[Ids, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Rows of different lengths as one array [rows longest], filled up on the right; and which places are real."""
    lengths = np.asarray([len(row) for row in rows])
    width = int(lengths.max(initial=0)) if length is None else length
    real = np.arange(width)[None, :] < lengths[:, None]
    ids = np.full(real.shape, fill, dtype=np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real


def next_tokens(rows: Sequence[Ids], pad: int) -> Batch:
    """Teacher forcing: each row without its last token as `input_ids` [rows longest], its next tokens as `labels` [n].

    `predicted` [n] holds the places of the labels in the flattened input_ids; it is absent where they are all places.
    """
    ids, real = padded([row[:-1] for row in rows], pad)
    labels = np.concatenate([row[1:] for row in rows]).astype(np.int64)
    batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if not real.all():
        batch["predicted"] = torch.from_numpy(np.flatnonzero(real))
    return batch


def packed_places(rows: Sequence[Sequence[int]], length: int) -> tuple[Ids, Ids]:
    """Positions and segments [rows length] of rows that hold pieces of the given lengths; padding is segment 0."""
    positions = np.zeros((len(rows), length), dtype=np.int64)
    segments = np.zeros((len(rows), length), dtype=np.int64)
    for row, pieces in enumerate(rows):
        if sum(pieces) > length:
            raise UsageError(f"a packed row of {sum(pieces)} tokens does not fit its length {length}")
        start = 0
        for number, piece in enumerate(pieces, 1):
            positions[row, start : start + piece] = np.arange(piece)
            segments[row, start : start + piece] = number
            start += piece
    return positions, segments
