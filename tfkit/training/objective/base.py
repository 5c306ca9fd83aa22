"""What an objective is: examples become items of token ids, items become batches, a batch and a model give a loss."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfkit.core.component import Config as PartConfig
from tfkit.core.component import Problem
from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.output import counted
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Baseline, Ids
from tfkit.training.objective.labels import ordered

logger = logging.getLogger("tfkit")

Item = dict[str, Ids]  # token ids of one training example, by name
Batch = dict[str, Tensor]  # what the loss needs; on the CPU until the training loop moves it
Example = Mapping[str, str]
Prediction = dict[str, Any]  # what a model says of one example, as JSON can hold it

ENCODED_AT_ONCE = 10_000  # texts; bounds the memory that the tokenizer's own objects take


@dataclass(frozen=True)
class Loss:
    """`total` is the sum of nats over `count` targets, differentiable."""

    total: Tensor
    count: int


class Objective(ObjectiveFacts):
    """Base of the objectives. `bind` (or `prepare`, which calls it) comes before everything else."""

    class Config(ObjectiveFacts.Config):
        """Options of every objective."""

        def shortest(self, facts: RecipeFacts) -> int:
            """The fewest tokens that a row can have."""
            return 1

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from self._missing_tokens(facts)
            yield from self._no_room(facts)
            yield from self._vectors(facts)

        def _missing_tokens(self, facts: RecipeFacts) -> Iterator[Problem]:
            required: tuple[str, ...] = self.part.required
            for role in facts.lacks(*required):
                text = f"'{self.part.part_name}' needs a special token for {role}; name one, such as <{role}>"
                yield Problem(role, text, at="data.tokenizer.special_tokens")

        def _no_room(self, facts: RecipeFacts) -> Iterator[Problem]:
            least, name = self.shortest(facts), self.part.part_name
            if facts.longest is not None and facts.longest.tokens < least:
                text = f"'{name}' needs rows of {least} tokens or more, special tokens among them"
                yield Problem("", f"{text}; this allows {facts.longest.tokens}", at=facts.longest.at)
            if facts.batch_tokens is not None and facts.batch_tokens < least:
                yield Problem("tokens", f"a row of '{name}' has {least} tokens or more", at="data.batch")

        def _vectors(self, facts: RecipeFacts) -> Iterator[Problem]:
            gives: frozenset[str] = self.part.gives
            if facts.blueprint is None or "inputs_embeds" in gives:
                return
            for plan in facts.blueprint.stacks():
                if plan.reads_vectors:
                    text = f"the {plan.side} reads vectors, and '{self.part.part_name}' hands over the ids of tokens"
                    yield Problem("embedding", f"{text}; say embedding: tokens", at=f"model.{plan.side}")

    def __init__(self, config: Config) -> None:
        self.config = config
        self.special: dict[str, int] = {}
        self.vocab_size = 0
        self.labels: tuple[str, ...] = ()  # of the training corpus, where it is `labelled`
        self.module: nn.Module | None = None  # a model of its own, trained beside the model

    @classmethod
    def able(cls, config: PartConfig | None = None) -> frozenset[str]:
        """What it declares, and what a metric may read of it."""
        found = super().able(config) | (cls.answers if cls.reference is not None else frozenset())
        if not cls.likelihood:
            return found
        return found | {"likelihood"} | ({"characters"} if cls.writes is not None else frozenset())

    def labels_in(self, example: Example) -> Sequence[str]:
        """The labels that an example has, where it learns labels."""
        return ()

    def learn(self, examples: Sequence[Example]) -> None:
        """Take the labels from the training examples; nothing where there are none to learn, or they are known."""
        if self.labelled and not self.labels:
            self.labels = ordered(label for example in examples for label in self.labels_in(example))

    def attach(self, model: Any) -> None:
        """Take the facts of the model that is to be trained; raises UsageError where it cannot be."""

    def predict(self, model: Any, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """What the model says of each example, whose reference is not asked for; raises UsageError, DataError."""
        raise UsageError(f"a model that was trained for {self.part_name} predicts nothing of a text")

    def answer(self, prediction: Prediction) -> str:
        """A prediction as the text that metrics compare with the reference."""
        raise UsageError(f"{self.part_name} makes no predictions")

    def bind(self, tokenizer: Tokenizer) -> None:
        """Take the facts of the tokenizer; raises DataError when a special token that is needed is missing."""
        missing = [role for role in self.required if role not in tokenizer.special_ids]
        if missing:
            there = ", ".join(tokenizer.special_ids) or "none"
            raise DataError(
                f"{self.part_name} needs a special token for {' and '.join(missing)}; the tokenizer has {there}. "
                f"Name one in the tokenizer's special_tokens, such as {{{missing[0]}: <{missing[0]}>}}"
            )
        self.special = dict(tokenizer.special_ids)
        self.vocab_size = tokenizer.vocab_size

    @property
    def pad(self) -> int:
        """What fills rows up. Any id would do, since no loss is taken on it and no real token sees it."""
        return self.special.get("pad", 0)

    def wanted(self, example: Example) -> str:
        """What the model should have said of an example, as the text that metrics compare with its answer."""
        return example[self.reference] if self.reference is not None else ""

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """The examples as token ids, none longer than the model can read.

        Logs what is left out and why; raises DataError when nothing is left, or a field is missing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no prepare")

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """How many places each item takes in the model, [items] or [items sides]."""
        raise NotImplementedError(f"{type(self).__name__} has no lengths")

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """A batch of one row per item; all that is random in it comes from `rng`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """A batch of several items per row of `length`, kept apart by segments; raises UsageError where it cannot."""
        raise UsageError(f"batches of {self.part_name} cannot be packed; say data.batch.pack: false")

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        """The loss of `model` on `batch`. Only in training: label smoothing and what layers add (auxiliary losses)."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text as a trained model expects to be handed them."""
        return list(ids)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """What a simple method reaches on the same targets, to print beside the model's loss."""
        return None

    def column(self, examples: Sequence[Example], field: str) -> list[str]:
        """One field of all examples; raises DataError where an example lacks it."""
        for number, example in enumerate(examples, 1):
            if field not in example:
                there = ", ".join(example) or "nothing"
                raise ExampleError(number, f"{self.part_name} reads {' and '.join(self.fields)}; it has {there}")
        return [example[field] for example in examples]

    def encode(self, examples: Sequence[Example], field: str, tokenizer: Tokenizer) -> list[Ids]:
        """Token ids of one field of all examples; raises DataError where an example lacks it."""
        texts = self.column(examples, field)
        slices = (texts[start : start + ENCODED_AT_ONCE] for start in range(0, len(texts), ENCODED_AT_ONCE))
        with located(texts, tokenizer):
            return [np.asarray(ids, dtype=np.int32) for part in slices for ids in tokenizer.encode_batch(part)]

    def left_out(self, number: int, of: int, why: str) -> None:
        """Say that examples were left out."""
        if number:
            logger.warning("%s: %s of %s left out: %s", self.part_name, f"{number:,}", counted(of, "example"), why)

    def usable(self, items: list[Item], examples: int, why: str) -> list[Item]:
        """`items`; raises DataError when there are none."""
        if not items:
            raise DataError(f"{self.part_name}: not one of {counted(examples, 'example')} can be used: {why}")
        return items


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


def token_loss(model: Any, hidden: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Sum of nats over `labels`; logits are made only at the places `predicted`. `hidden` is [batch time d_model]."""
    head = model.head
    if not hasattr(head, "loss"):
        what = "no head" if head is None else f"a {type(head).__name__}"
        raise UsageError(
            f"the objective predicts tokens, and the model has {what}; give it a head such as language_model"
        )
    if isinstance(model, Model):
        head = model.head_of_last
    features = hidden.flatten(0, 1)
    if "predicted" in batch:
        features = features.index_select(0, batch["predicted"])
    total: Tensor = head.loss(features, batch["labels"], smoothing)
    return total


def finished(total: Tensor, auxiliary: Tensor | None, count: int, training: bool) -> Loss:
    """The loss with what layers add to it, which is meant per target and only for training."""
    if training and auxiliary is not None:
        total = total + auxiliary * count
    return Loss(total, count)
