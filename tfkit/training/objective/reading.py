"""Base of the objectives that say something about a text: one head reads the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import DataError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.data.by_length import by_length
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.frame import Frame
from tfkit.training.baseline import Ids
from tfkit.training.objective.base import Batch, Example, Item, Loss, Objective, finished, logger, padded


class Reading(Objective):
    """Base of the objectives that read a text, or two, and train one head on what they read.

    Items hold the tokens `text`, `types` (0 and 1) where there are two texts, `marked` tokens, which see all and are
    seen by all where the model has such a rule, and the targets, which a subclass puts in and lays out in `targets`.
    """

    reads: ClassVar = "bidirectional"
    also: ClassVar = frozenset({"causal"})
    gives: ClassVar = frozenset({"attention_mask", "token_type_ids", "global_attention_mask"})
    predicts: ClassVar = True

    class Config(Objective.Config):
        """Options of the objectives that read."""

        head: str | None = Field(None, description="which of the model's `heads` is trained; none: its `head`")

        def trained_head(self) -> str | None:
            return self.head

        def shortest(self, facts: RecipeFacts) -> int:
            return 2 + bool(facts.token("start")) + bool(facts.token("end"))

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            head = facts.head(self.head)
            if head is not None and head.has_independent_classes():
                name = self.part.part_name
                text = f"'{name}' trains classes that exclude each other; leave independent out"
                yield Problem("independent", text, at="model.head" if self.head is None else f"model.heads.{self.head}")

    config: Config
    template: Frame | None = None  # of an imported model's own tokenizer; None: what the roles of tokens say

    @property
    def frame(self) -> Frame:
        """The special tokens around a text, and between two."""
        return Frame.of_roles(self.special) if self.template is None else self.template

    def targets(self, items: Sequence[Item], width: int) -> Mapping[str, Ids]:
        """What is to be said of each item, as arrays; rows of the batch are `width` tokens long."""
        raise NotImplementedError(f"{type(self).__name__} has no targets")

    def nats(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """The loss of what the head says, summed over its targets, and how many those are."""
        raise NotImplementedError(f"{type(self).__name__} has no nats")

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """[items]: places in the model."""
        return np.asarray([len(item["text"]) for item in items])

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """What is read, and the targets."""
        batch = self.rows(items)
        targets = self.targets(items, batch["input_ids"].shape[1])
        return batch | {name: torch.from_numpy(np.asarray(value)) for name, value in targets.items()}

    def rows(self, items: Sequence[Item]) -> Batch:
        """`input_ids`, `marked`, and `attention_mask` and `token_type_ids` where there is something to say."""
        ids, real = padded([item["text"] for item in items], self.pad)
        marked, _ = padded([item["marked"] for item in items], 0)
        batch = {"input_ids": ids, "marked": marked}
        if "types" in items[0]:
            batch["token_type_ids"] = padded([item["types"] for item in items], 0)[0]
        if not real.all():
            batch["attention_mask"] = real
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def said(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """What the head says of a batch, and what layers add to the loss."""
        real = batch.get("attention_mask")
        out = model(input_ids=batch["input_ids"], attention_mask=real, with_heads=False, **inputs_of(model, batch))
        return head_of(model, self.config.head)(out.hidden, real), out.auxiliary_loss

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        """The loss of what the head says."""
        logits, auxiliary = self.said(model, batch)
        total, count = self.nats(logits.float(), batch, training)
        return finished(total, auxiliary, count, training)

    def all_said(self, model: Any, items: Sequence[Item]) -> list[Tensor]:
        """What the head says of each item, on the CPU; padding is left out where it says something of each token."""
        said: list[Tensor] = [torch.empty(0)] * len(items)
        device = next(model.parameters()).device
        with torch.inference_mode():
            for rows in by_length(self.lengths(items).tolist(), device.type):
                batch = {name: value.to(device) for name, value in self.rows([items[row] for row in rows]).items()}
                logits = self.said(model, batch)[0].float().cpu()
                for row, logit in zip(rows, logits, strict=True):
                    said[row] = logit[: len(items[row]["text"])] if self.of_tokens else logit
        return said

    of_tokens: ClassVar[bool] = False  # whether the head says something of each token

    def one_or_two(self, first: Ids, second: Ids | None, room: int | None) -> Item:
        """An item of one text, or of two with the separator between; the longer one is cut where room is lacking.

        The first token is marked: it may stand for the text.
        """
        frame = self.frame
        if second is None:
            text = joined(frame.before, first[: None if room is None else self.room(room)], frame.after)
            return {"text": text, "marked": first_of(len(text))}
        free = None if room is None else self.room(room) - len(frame.between)
        first, second = cut_pair(first, second, free)
        before, after = joined(frame.before, first, frame.between), joined(second, frame.after)
        types = np.repeat(np.asarray([0, 1], dtype=np.int32), [len(before), len(after)])
        text = np.concatenate((before, after))
        return {"text": text, "types": types, "marked": first_of(len(text))}

    def read_texts(self, examples: Sequence[Example], tokenizer: Tokenizer, longest: int | None) -> list[Item]:
        """Each example's text, or two, as an item without targets; never without a token. Logs what is cut."""
        self.bind(tokenizer)
        items, cut = [], 0
        for first, second in encoded_pairs(self, examples, tokenizer):
            item = self.one_or_two(first, second, longest)
            size = len(first) + (0 if second is None else len(second) + len(self.frame.between))
            cut += len(item["text"]) < size + self.around
            items.append(item if len(item["text"]) else alone(self.pad))
        if cut:
            logger.warning(
                "%s: %s of %s texts are cut to %s tokens", self.part_name, f"{cut:,}", f"{len(items):,}", longest
            )
        return items

    @property
    def around(self) -> int:
        """How many special tokens stand around a text."""
        return len(self.frame.before) + len(self.frame.after)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A text with the special tokens around it."""
        return [*self.frame.before, *ids, *self.frame.after]

    def room(self, longest: int) -> int:
        """How many tokens fit in a row of `longest`, beside start and end; raises DataError where none does."""
        free = longest - self.around
        if free < 2:
            raise DataError(f"rows of {longest} tokens have no room for a text between start and end; allow more")
        return free


def encoded_pairs(
    objective: Objective, examples: Sequence[Example], tokenizer: Tokenizer
) -> Iterator[tuple[Ids, Ids | None]]:
    """The tokens of `text`, and of `second` where an example has one."""
    seconds = [example for example in examples if "second" in example]
    pairs = iter(objective.encode(seconds, "second", tokenizer)) if seconds else iter(())
    for example, text in zip(examples, objective.encode(examples, "text", tokenizer), strict=True):
        yield text, next(pairs) if "second" in example else None


def joined(*pieces: Sequence[int] | Ids) -> Ids:
    """Pieces of a row, one after another."""
    return np.concatenate([np.asarray(piece, dtype=np.int32) for piece in pieces])


def alone(id_: int) -> Item:
    """What is read of an empty text, where no special token stands around it."""
    return {"text": np.asarray([id_], dtype=np.int32), "marked": np.ones(1, dtype=np.int32)}


def is_text(example: Example) -> bool:
    """Whether there is something to read."""
    return bool(example["text"].strip() or example.get("second", "").strip())


def texts_of(example: Example) -> dict[str, str]:
    """What an example says of itself in a prediction."""
    return {field: example[field] for field in ("text", "second") if field in example}


def cut_pair(first: Ids, second: Ids, free: int | None) -> tuple[Ids, Ids]:
    """Two texts that fit into `free` tokens together: what is too much is taken from the end of the longer one."""
    if free is None or len(first) + len(second) <= free:
        return first, second
    short = min(len(first), len(second), free // 2)
    if len(first) <= len(second):
        return first[:short], second[: free - short]
    return first[: free - short], second[:short]


def first_of(length: int) -> Ids:
    """Marks of the first of `length` tokens."""
    marks = np.zeros(length, dtype=np.int32)
    marks[:1] = 1
    return marks


def head_of(model: Any, name: str | None) -> Any:
    """The head called `name` among `heads`, or the model's `head`; raises UsageError where there is none."""
    if name is None and model.head is not None:
        return model.head
    if name is not None and name in model.heads:
        return model.heads[name]
    what = "head" if name is None else f"head '{name}'"
    raise UsageError(f"the objective trains the model's {what}, and there is none")


def inputs_of(model: Any, batch: Batch) -> dict[str, Tensor]:
    """The inputs of a call that this model reads, besides ids and mask."""
    if model.blueprint.encoder is not None and model.blueprint.decoder is not None:
        return read_again(model, batch)
    plan = model.blueprint.last
    inputs = {}
    if "token_type_ids" in batch and plan.embedding is not None and plan.embedding.num_segments() > 1:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if "global_attention_mask" in plan.needs:
        inputs["global_attention_mask"] = batch["marked"]
    return inputs


def read_again(model: Any, batch: Batch) -> dict[str, Tensor]:
    """A text in the decoder too, after the start: its states say something of the text (Lewis et al. 2019: BART)."""
    ids, start = batch["input_ids"], dict(model.blueprint.special_ids).get("start")
    if start is None:
        raise UsageError("the decoder begins with model.special_ids.start, which the recipe does not say")
    again = {"decoder_input_ids": torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)}
    # a place is as real as the token that its state says something of
    return again | ({"decoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {})
