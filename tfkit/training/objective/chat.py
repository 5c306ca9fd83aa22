"""Chat: a decoder predicts the assistant's turns of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.data.chat import DEFAULT, ChatTemplate, Message, read
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Ids
from tfkit.training.objective.base import Loss, Objective, causal_loss
from tfkit.training.objective.completion import Completions
from tfkit.training.objective.rows import Batch, Example, Item, PackableRows, padded, sizes


class ChatRows(PackableRows):
    """One row per conversation, formatted with the chat template. A plain source counts as a user message."""

    fields = ("source", "target")
    required = ("start", "end")
    config: Chat.Config

    def template(self) -> ChatTemplate:
        """Return the template of the recipe, or the default."""
        return _compiled(DEFAULT if self.config.template is None else self.config.template)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to the tokenizer, whose special tokens the template inserts."""
        super().bind(tokenizer)
        self.special = {role: tokenizer.token(id_) for role, id_ in tokenizer.special_ids.items()}

    def learned(self, example: Example, fields: Sequence[str]) -> list[str]:
        """Return the formatted conversation without special tokens."""
        return [self.template().render(_conversation(example), {})]

    def read(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Encode conversations (a text, or messages as JSON) as prompts that end where the reply starts."""
        self.bind(tokenizer)
        template = self.template()
        return tokenizer.encode_batch([template.render(read(text), self.special, True) for text in texts], special=True)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` and `reply`, a mask of the tokens included in the loss."""
        self.bind(tokenizer)
        self._column(examples, "source")
        self._column(examples, "target")
        items: list[Item] = []
        for number, example in enumerate(examples, 1):
            if example["target"]:
                try:
                    items.append(self._item(_conversation(example), tokenizer))
                except DataError as error:
                    raise ExampleError(number, str(error)) from None
        fits = [item for item in items if len(item["text"]) - 1 <= (max_length or 2**62)]
        count, empty, long = len(examples), len(examples) - len(items), len(items) - len(fits)
        self._left_out(empty, count, "the target is empty")
        self._left_out(long, count, f"longer than {max_length} tokens")
        return self._usable(fits, count, f"{empty:,} are empty, {long:,} longer than {max_length} tokens")

    def _item(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Item:
        places = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        template = self.template()
        texts = [template.render(messages[:place], self.special, True) for place in places]
        texts += [template.render(messages[: place + 1], self.special) for place in places]
        *parts, whole = tokenizer.encode_batch([*texts, template.render(messages, self.special)], special=True)
        for part in parts:
            if whole[: len(part)] != part:
                text = "with this chat template, a conversation's tokens do not start with the tokens of its prompts"
                raise DataError(f"{text}; a template may only append turns, with special tokens around each reply")
        end, count = self.tokens.special["end"], len(places)
        reply = np.zeros(len(whole), np.int32)
        for before, after in zip(parts[:count], parts[count:], strict=True):
            if end not in after[len(before) :]:
                raise DataError(f"the chat template ends a reply without the end token {self.special['end']}; add it")
            reply[len(before) : len(after) - after[::-1].index(end)] = 1
        return {"text": np.asarray(whole, np.int32), "reply": reply}

    def lengths(self, items: Sequence[Item]) -> Ids:
        """Return the number of positions of each item in the model, [items]."""
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


def _conversation(example: Example) -> list[Message]:
    return [*read(example["source"]), {"role": "assistant", "content": example["target"]}]


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
        """Options of chat."""

        template: str | None = Field(
            None, description="Jinja chat template, as in transformers; none: start and end token around each turn"
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
        """Compute the cross-entropy over the assistant's tokens."""
        return causal_loss(model, batch, training)
