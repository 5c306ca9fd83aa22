"""Base classes of objectives that train a head on the hidden states of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import DataError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.slots import ObjectiveFacts
from tfkit.data.batches import by_length
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.word import Frame
from tfkit.functional.view import wide
from tfkit.models import Model
from tfkit.training.objective.base import Answers, Loss, Objective, finished
from tfkit.training.objective.baseline import Ids
from tfkit.training.objective.rows import (
    Batch,
    Example,
    Item,
    Rows,
    extra_batch,
    extra_of,
    logger,
    mask_of,
    padded,
    vector_batch,
)


class ReadingRows(Rows):
    """Base class of rows with one or two framed texts. Subclasses add targets to items and batches.

    Items hold `text` (ids), `types` (0 or 1 per token, for pairs) and `marked` (mask of tokens with global attention).
    """

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        super().__init__(config)
        self.template: Frame | None = None  # template of an imported tokenizer; None: derived from the special tokens

    @property
    def _frame(self) -> Frame:
        """Special tokens around a text and between two texts."""
        return Frame.of_roles(self.tokens.special) if self.template is None else self.template

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        return np.asarray([item_length(item) for item in items])

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        return text_batch(items, self.tokens.pad)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return [*self._frame.before, *ids, *self._frame.after]

    def _texts(self, examples: Sequence[Example], tokenizer: Tokenizer, longest: int | None) -> Sequence[Item]:
        """Return items without targets, with at least one token each. Log the number of truncated texts."""
        if self.plan is not None:
            return self.vectors(examples)
        self.bind(tokenizer)
        frame, items, cut = self._frame, [], 0
        for own, (first, second) in zip(self.extra(examples), self._pairs(examples, tokenizer), strict=True):
            item = framed(frame, first, second, longest) | own
            size = len(first) + (0 if second is None else len(second) + len(frame.between))
            cut += len(item["text"]) < size + frame.around
            items.append(item if len(item["text"]) else alone(self.tokens.pad) | own)
        if cut:
            logger.warning(
                "%s: %s of %s texts are truncated to %s tokens", self._name, f"{cut:,}", f"{len(items):,}", longest
            )
        return items

    def _pairs(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Iterator[tuple[Ids, Ids | None]]:
        """Yield the tokens of `text` and of `second`, or None without `second`."""
        seconds = [example for example in examples if "second" in example]
        pairs = iter(self._encoded(seconds, "second", tokenizer)) if seconds else iter(())
        for example, text in zip(examples, self._encoded(examples, "text", tokenizer), strict=True):
            yield text, next(pairs) if "second" in example else None


class ReadingAnswers(Answers):
    """Base class of answers computed by a head from a text."""

    objective: Reading
    rows: ReadingRows
    of_tokens: ClassVar[bool] = False  # True if the head has an output per token

    def _text_items(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> Sequence[Item]:
        """Return the items of the examples, truncated to the model's maximum length."""
        return self.rows._texts(examples, tokenizer, model.blueprint.last.max_length)

    def _logits(self, model: Model, items: Sequence[Item]) -> list[Tensor]:
        """Compute the head's output for each item, on the CPU. Per-token outputs exclude padding."""
        outputs: list[Tensor] = [torch.empty(0)] * len(items)
        rows, device = self.rows, next(model.parameters()).device
        with torch.inference_mode():
            for together in by_length(rows.lengths(items).tolist(), device.type):
                some = [items[row] for row in together]
                batch = text_batch(some, rows.tokens.pad) | extra_batch(some)
                batch = {name: value.to(device) for name, value in batch.items()}
                logits = wide(head_output(self.objective.config.head, model, batch)[0]).cpu()
                for row, logit in zip(together, logits, strict=True):
                    outputs[row] = logit[: item_length(items[row])] if self.of_tokens else logit
        return outputs


class Reading(Objective):
    """Base class of objectives that train a head on one or two texts."""

    rows_type: ClassVar[type[ReadingRows]] = ReadingRows
    answers_type: ClassVar[type[ReadingAnswers] | None] = ReadingAnswers
    reads = "bidirectional"
    also: ClassVar = frozenset({"causal"})
    gives = frozenset({"attention_mask", "token_type_ids", "global_attention_mask"})

    class Config(Objective.Config):
        head: str | None = Field(
            None, description="name of the head to train among the model's `heads`; none: its `head`"
        )

        def trained_head(self) -> str | None:
            return self.head

        def shortest(self, facts: RecipeFacts) -> int:
            return 2 + bool(facts.token("start")) + bool(facts.token("end"))

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            head = facts.head(self.head)
            several = dict(self).get("multi_label", False)
            if head is not None and head.has_independent_classes() != several:
                name = self.part.part_name
                text = f"'{name}' requires exclusive classes; remove independent"
                text = f"multi_label of '{name}' requires independent: true" if several else text
                yield Problem("independent", text, at="model.head" if self.head is None else f"model.heads.{self.head}")

    config: Config
    rows: ReadingRows

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Return the summed loss of the head's output and the number of targets."""
        raise NotImplementedError(f"{type(self).__name__} has no head_loss")

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        logits, auxiliary = head_output(self.config.head, model, batch)
        total, count = self.head_loss(wide(logits), batch, training)
        return finished(total, auxiliary, count, training)


def item_length(item: Item) -> int:
    """Return the number of positions of an item in the model."""
    return int(item["positions"][0]) if "vectors" in item else len(item["text"])


def text_batch(items: Sequence[Item], pad: int) -> Batch:
    """Collate `input_ids`, `marked`, and, if needed, `attention_mask` and `token_type_ids`.

    For vectors, collate `inputs_embeds` in place of ids.
    """
    if "vectors" in items[0]:
        marks, _ = padded([first_of(item_length(item)) for item in items], 0)
        return vector_batch([item["vectors"] for item in items]) | {"marked": torch.from_numpy(marks)}
    ids, real = padded([item["text"] for item in items], pad)
    marked, _ = padded([item["marked"] for item in items], 0)
    batch = {"input_ids": ids, "marked": marked}
    if "types" in items[0]:
        batch["token_type_ids"] = padded([item["types"] for item in items], 0)[0]
    return {name: torch.from_numpy(value) for name, value in batch.items()} | mask_of(real)


def framed(frame: Frame, first: Ids, second: Ids | None, longest: int | None) -> Item:
    """Create an item from one text, or from two with a separator, truncated to `longest` tokens.

    The first token is marked, because it may represent the text. Raise DataError if no text fits.
    """
    room = None if longest is None else room_in(frame, longest)
    if second is None:
        text = joined(frame.before, first[:room], frame.after)
        return {"text": text, "marked": first_of(len(text))}
    first, second = cut_pair(first, second, None if room is None else room - len(frame.between))
    before, after = joined(frame.before, first, frame.between), joined(second, frame.after)
    types = np.repeat(np.asarray([0, 1], dtype=np.int32), [len(before), len(after)])
    text = np.concatenate((before, after))
    return {"text": text, "types": types, "marked": first_of(len(text))}


def room_in(frame: Frame, longest: int) -> int:
    """Return the number of text tokens that fit in a row between start and end. Raise DataError if fewer than 2 fit."""
    free = longest - frame.around
    if free < 2:
        raise DataError(
            f"rows of {longest} tokens are too short for a text between start and end tokens; allow longer rows"
        )
    return free


def head_output(head: str | None, model: Model, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return the output of the named head for a batch, and the model's auxiliary loss."""
    real = batch.get("attention_mask")
    read = {name: batch[name] for name in ("input_ids", "inputs_embeds") if name in batch}
    out = model(**read, attention_mask=real, with_heads=False, **inputs_of(model, batch), **extra_of(batch))
    return head_of(model, head)(out.hidden, real), out.auxiliary_loss


def joined(*pieces: Sequence[int] | Ids) -> Ids:
    """Concatenate the pieces of a row."""
    return np.concatenate([np.asarray(piece, dtype=np.int32) for piece in pieces])


def alone(id_: int) -> Item:
    """Create an item of a single token, for an empty text that gets no special tokens."""
    return {"text": np.asarray([id_], dtype=np.int32), "marked": np.ones(1, dtype=np.int32)}


def is_text(example: Example) -> bool:
    """True if the example has a nonempty text or vectors."""
    return "vectors" in example or bool(example["text"].strip() or example.get("second", "").strip())


def texts_of(example: Example) -> dict[str, str]:
    """Return the input fields of an example, which its prediction includes."""
    return {field: example[field] for field in ("vectors", "text", "second") if field in example}


def cut_pair(first: Ids, second: Ids, free: int | None) -> tuple[Ids, Ids]:
    """Truncate two texts to `free` tokens in total, shortening the longer one first."""
    if free is None or len(first) + len(second) <= free:
        return first, second
    short = min(len(first), len(second), free // 2)
    if len(first) <= len(second):
        return first[:short], second[: free - short]
    return first[: free - short], second[:short]


def first_of(length: int) -> Ids:
    """Return a mask of `length` tokens in which only the first is set."""
    marks = np.zeros(length, dtype=np.int32)
    marks[:1] = 1
    return marks


def head_of(model: Model, name: str | None) -> Any:
    """Return the head called `name`, or the model's `head` if None. Raise UsageError if it is missing."""
    if name is None and model.head is not None:
        return model.head
    if name is not None and name in model.heads:
        return model.heads[name]
    what = "head" if name is None else f"head '{name}'"
    raise UsageError(f"the objective trains the model's {what}, which is missing")


def inputs_of(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return the model's inputs other than ids and attention mask."""
    if model.blueprint.encoder is not None and model.blueprint.decoder is not None:
        return read_again(model, batch)
    plan = model.blueprint.last
    inputs = {}
    if "token_type_ids" in batch and plan.embedding is not None and plan.embedding.num_segments() > 1:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if "global_attention_mask" in plan.needs:
        inputs["global_attention_mask"] = batch["marked"]
    return inputs


def read_again(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return the text as decoder input, shifted right by the start token (Lewis et al. 2019: BART)."""
    ids, start = batch["input_ids"], dict(model.blueprint.special_ids).get("start")
    if start is None:
        raise UsageError("the recipe does not set model.special_ids.start, the decoder's first token")
    again = {"decoder_input_ids": torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)}
    # position t of the decoder represents token t, so the masks are equal
    return again | ({"decoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {})
