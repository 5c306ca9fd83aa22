"""my_part: an objective of your own, what a model is trained for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

import tfkit
from tfkit.data.tokenizer.base import Tokenizer
from tfkit.training.objective.base import Batch, Example, Item, Loss, Objective, finished, next_tokens, token_loss


@tfkit.register("objective", "my_part")
class MyPart(Objective):
    """Loss = -sum log p(token_t | token_<t) over the last `last` tokens of each text, the earlier ones being given."""

    # The options of the part, as a recipe writes them: {type: my_part, last: 5}. Add yours here.
    class Config(Objective.Config):
        last: int = Field(8, ge=1, description="tokens of each text that are predicted")

    reads: ClassVar = "causal"  # or "bidirectional", "encoder_decoder"
    fields: ClassVar = ("text",)  # what it reads of a corpus
    config: Config

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        # Examples become items of token ids; what cannot be used is left out, and said to be.
        self.bind(tokenizer)
        texts = [
            ids[: None if max_length is None else max_length + 1] for ids in self.encode(examples, "text", tokenizer)
        ]
        items: list[Item] = [{"text": ids} for ids in texts if len(ids) > 1]
        self.left_out(len(texts) - len(items), len(texts), "there is no next token")
        return self.usable(items, len(texts), "none has two tokens")

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        return np.asarray([len(item["text"]) - 1 for item in items])  # places in the model

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        # Change this: what the model reads, and what it is to say. `labels` has as many entries as `predicted` has
        # places, which count through all rows of input_ids.
        batch = next_tokens([item["text"] for item in items], self.pad)
        width, places, labels = batch["input_ids"].shape[1], [], []
        for row, item in enumerate(items):
            targets = len(item["text"]) - 1
            first = max(0, targets - self.config.last)
            places += [row * width + place for place in range(first, targets)]
            labels += item["text"][first + 1 :].tolist()
        new = batch["labels"].new_tensor
        return batch | {"predicted": new(places), "labels": new(labels)}

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        out = model(input_ids=batch["input_ids"], with_heads=False)
        total = token_loss(model, out.hidden, batch)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)
