"""Chat: a decoder predicts the assistant's turns of conversations."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.core.slots import TokenizerFacts
from tfkit.data.chat import (
    DEFAULT,
    NAMES,
    ChatTemplate,
    ControlTokens,
    Conversation,
    Cuts,
    Rendered,
    conversation_of,
    read,
)
from tfkit.data.tokenizer import Character, File, Tokenizer
from tfkit.data.tokenizer.base import LearnedTokenizer
from tfkit.models import Model
from tfkit.training.objective.base import Loss, Objective, causal_loss
from tfkit.training.objective.baseline import Ids
from tfkit.training.objective.completion import Completions
from tfkit.training.objective.rows import Batch, Example, Item, PackableRows, padded, sizes

logger = logging.getLogger("tfkit")
RENDERED_AT_ONCE = 100  # conversations per request


class ChatRows(PackableRows):
    """One row per conversation, formatted with the chat template. A plain source counts as a user message."""

    fields = ("source", "target")
    required = ("start", "end")
    tagged = False
    config: Chat.Config

    def template(self) -> ChatTemplate:
        """Return the template of the recipe, or the default."""
        return _compiled(DEFAULT if self.config.template is None else self.config.template)

    def learned(self, examples: Iterable[Example], fields: Sequence[str]) -> Iterator[str]:
        """Yield the formatted conversations without special tokens."""
        several, special = iter(examples), dict.fromkeys(NAMES, "")
        while talks := [conversation_of(one) for one in islice(several, RENDERED_AT_ONCE)]:
            cuts = [[(len(talk), False)] for talk in talks]
            for (rendered,) in self.template().rendered(talks, special, cuts, self.config.date):
                yield rendered.text

    def read(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Encode conversations (a text, or messages as JSON) as prompts that end where the reply starts."""
        self.bind(tokenizer)
        control = ControlTokens.of(tokenizer)
        talks = [read(text) for text in texts]
        rendered = self._rendered(talks, [[(len(talk), True)] for talk in talks], control)
        return control.encode([one for (one,) in rendered])

    def _rendered(
        self, talks: Sequence[Conversation], cuts: Sequence[Cuts], control: ControlTokens
    ) -> list[list[Rendered]]:
        return self.template().rendered(talks, control.special, cuts, self.config.date, control.control)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` and `reply`, a mask of the tokens included in the loss."""
        self.bind(tokenizer)
        self._column(examples, "source")
        self._column(examples, "target")
        items: list[Item] = []
        control = ControlTokens.of(tokenizer)
        start = 0
        while some := examples[start : start + (RENDERED_AT_ONCE if start else 1)]:  # one, as a template may hang
            items += self._items(some, start, control)
            start += len(some)
        if self.template().dated:
            logger.warning("%s: the chat template writes the current date; set objective.date to fix it", self._name)
        fits = [item for item in items if len(item["text"]) - 1 <= (max_length or 2**62)]
        count, empty, long = len(examples), len(examples) - len(items), len(items) - len(fits)
        self._left_out(empty, count, "the target is empty")
        self._left_out(long, count, f"longer than {max_length} tokens")
        return self._usable(fits, count, f"{empty:,} are empty, {long:,} longer than {max_length} tokens")

    def _items(self, examples: Sequence[Example], start: int, control: ControlTokens) -> list[Item]:
        """Return the items of examples with a target. Raise ExampleError for the first that is unusable."""
        talks = [conversation_of(example) for example in examples if example["target"]]
        replies = [[number for number, one in enumerate(talk) if one["role"] == "assistant"] for talk in talks]
        cuts = [[(place, True) for place in places] + [(place + 1, False) for place in places] for places in replies]
        try:
            rendered = self._rendered(talks, cuts, control)
            ids = iter(control.encode([one for several in rendered for one in several]))
            return [self._item(several, [next(ids) for _ in several], control) for several in rendered]
        except DataError as error:
            if len(examples) == 1:
                raise ExampleError(start + 1, str(error)) from None
        return [item for place, one in enumerate(examples, start) for item in self._items([one], place, control)]

    def _item(self, rendered: Sequence[Rendered], parts: Sequence[list[int]], control: ControlTokens) -> Item:
        """Return the item of a conversation, given its prompts, followed by these with their replies."""
        whole, count = parts[-1], len(parts) // 2
        if spans := rendered[-1].spans:
            _, places = control.encode_with_places(rendered[-1])
            marked = [any(begin < b and a < end for a, b in spans) for begin, end in places]
            return {"text": np.asarray(whole, np.int32), "reply": np.asarray(marked, np.int32)}
        for part in parts:
            if whole[: len(part)] != part:
                text = "with this chat template, a conversation's tokens do not start with the tokens of its prompts"
                raise DataError(f"{text}; mark the replies with {{% generation %}}, or let it only append turns")
        end = self.tokens.special["end"]
        reply = np.zeros(len(whole), np.int32)
        for before, after in zip(parts[:count], parts[count:], strict=True):
            if end not in after[len(before) :]:
                raise DataError(
                    f"the chat template ends a reply without the end token {control.special['end']}; add it"
                )
            reply[len(before) : len(after) - after[::-1].index(end)] = 1
        return {"text": np.asarray(whole, np.int32), "reply": reply}

    def lengths(self, items: Sequence[Item]) -> Ids:
        return sizes(items, "text") - 1

    def _batch(self, rows: Sequence[Sequence[Item]], length: int | None) -> Batch:
        ids, _ = padded([np.concatenate([item["text"][:-1] for item in row]) for row in rows], self.tokens.pad, length)
        predicted: list[Ids] = []
        for number, row in enumerate(rows):
            start = number * ids.shape[1] - 1
            for item in row:
                predicted.append(np.flatnonzero(item["reply"]) + start)
                start += len(item["text"]) - 1
        labels = np.concatenate([item["text"][item["reply"] == 1] for row in rows for item in row]).astype(np.int64)
        places = torch.from_numpy(np.concatenate(predicted))
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels), "predicted": places}


_compiled = lru_cache(maxsize=8)(ChatTemplate)


def rehearse(rows: ChatRows, examples: Sequence[Example], tokenizer: TokenizerFacts.Config | None) -> None:
    """Prepare examples with the tokenizer, or with one for characters if that is not learned yet.

    Raise DataError for a fault of the template.
    """
    texts = rows.learned(examples, rows.fields)
    if isinstance(tokenizer, LearnedTokenizer.Config):
        tokenizer = Character.Config(special_tokens=tokenizer.special_tokens)
    if isinstance(tokenizer, Character.Config | File.Config) and examples:
        rows.prepare(examples, tokenizer.build().fit([*texts, " "]), None)


@register("objective", "chat")
class Chat(Objective):
    """Loss = -sum log p(token | conversation so far) over the assistant's turns (Ouyang et al. 2022, 2203.02155)."""

    rows_type = ChatRows
    answers_type = Completions
    reads = "causal"
    capabilities = frozenset({"likelihood", "words", "continuations", "packing"})
    example: ClassVar = {
        "template": "{% for message in messages %}{{ bos_token + message['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
    }

    class Config(Objective.Config):
        template: str | None = Field(
            None, description="Jinja chat template, as in transformers; none: start and end token around each turn"
        )
        date: str = Field(
            "", pattern=r"^(\d{4}-\d\d-\d\d)?$", description="date for templates, YYYY-MM-DD; empty: the current date"
        )

        @model_validator(mode="after")
        def _compiles(self) -> Chat.Config:
            if self.template is not None:
                try:
                    _compiled(self.template)
                except UsageError as error:
                    raise ValueError(str(error)) from None
            return self

        def shortest(self, facts: RecipeFacts) -> int:
            return 3

    config: Config

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        return causal_loss(model, batch, training)
