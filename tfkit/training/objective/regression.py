"""Say a number of a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.errors import ExampleError
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.training.baseline import Baseline, Ids
from tfkit.training.objective.base import Batch, Example, Item, Prediction
from tfkit.training.objective.reading import Reading, is_text, texts_of


@register("objective", "regression")
class Regression(Reading):
    """Loss = (value - label)^2 of a text, or of two where the corpus gives `second` (Devlin et al. 2018: STS-B)."""

    fields: ClassVar = ("text", "label")
    heads: ClassVar = ("regression",)
    tokenized: ClassVar = ("text", "second")
    reference: ClassVar = "label"
    answers: ClassVar = frozenset({"numbers"})
    likelihood: ClassVar = False
    metrics: ClassVar = ("pearson", "spearman")
    sample_texts: ClassVar = {"label": ("1.5", "-2", "0", "3e-1", "4")}

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """Items `text` and `label`, a number; a text is cut to what the model can read."""
        labels = self.column(examples, "label")
        items = self.read_texts(examples, tokenizer, max_length)
        kept = [
            item | {"label": np.asarray([_number(label, number)], dtype=np.float32)}
            for number, (label, item) in enumerate(zip(labels, items, strict=True), 1)
            if is_text(examples[number - 1])
        ]
        self.left_out(len(items) - len(kept), len(items), "the text is empty")
        return self.usable(kept, len(items), "the texts are empty")

    def targets(self, items: Sequence[Item], width: int) -> Mapping[str, Ids]:
        """`labels` [rows], numbers."""
        return {"labels": np.concatenate([item["label"] for item in items])}

    def nats(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Squared error of `logits` [rows]; no nats, but half of it is those of a normal distribution."""
        return F.mse_loss(logits, batch["labels"], reduction="sum"), len(logits)

    def predict(self, model: Any, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Of each text its `value`."""
        items = self.read_texts(examples, tokenizer, model.blueprint.last.max_length)
        return [
            {**texts_of(example), "value": float(value)}
            for example, value in zip(examples, self.all_said(model, items), strict=True)
        ]

    def answer(self, prediction: Prediction) -> str:
        """The number."""
        return repr(prediction["value"])

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """The mean of the training examples, whatever the text."""
        train, valid = (np.concatenate([item["label"] for item in items]) for items in (train_items, valid_items))
        return Baseline("mean label", float(((valid - train.mean()) ** 2).mean()))


def _number(text: str, example: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ExampleError(example, f"the label is '{text}'; regression learns numbers")
    return number
