"""Regression: a number for a text or text pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.errors import ExampleError
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.baseline import Baseline
from tfkit.training.objective.base import Prediction
from tfkit.training.objective.reading import Reading, ReadingAnswers, ReadingRows, is_text, texts_of
from tfkit.training.objective.rows import Batch, Example, Item


class NumberedRows(ReadingRows):
    """Texts with numbers."""

    fields = ("text", "label")
    tokenized = ("text", "second")

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` and numeric `label`. Texts are truncated to the model's maximum length."""
        labels = self._column(examples, "label")
        items = self._texts(examples, tokenizer, max_length)
        kept = [
            item | {"label": np.asarray([_number(label, number)], dtype=np.float64)}
            for number, (label, item) in enumerate(zip(labels, items, strict=True), 1)
            if is_text(examples[number - 1])
        ]
        self._left_out(len(items) - len(kept), len(items), "the text is empty")
        return self._usable(kept, len(items), "the texts are empty")

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate inputs and numeric `labels` [rows]."""
        labels = np.concatenate([item["label"] for item in items])
        return super().collate(items, rng) | {"labels": torch.from_numpy(labels)}


class Numbers(ReadingAnswers):
    """Predicted number of a text."""

    reference = "label"
    metrics = ("pearson", "spearman")
    sample_texts: ClassVar = {"label": ("1.5", "-2", "0", "3e-1", "4")}

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the `value` of each text."""
        items = self._text_items(model, examples, tokenizer)
        return [
            {**texts_of(example), "value": float(value)}
            for example, value in zip(examples, self._logits(model, items), strict=True)
        ]

    def text(self, prediction: Prediction) -> str:
        """Return the number as text."""
        return repr(prediction["value"])


@register("objective", "regression")
class Regression(Reading):
    """Loss = (value - label)^2 for a text, or for two texts if the corpus has `second` (Devlin et al. 2018: STS-B)."""

    rows_type = NumberedRows
    answers_type = Numbers
    heads = ("regression",)
    capabilities = frozenset({"numbers"})  # no likelihood: squared error

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Sum the squared errors of `logits` [rows]: twice the NLL of a unit normal, up to a constant."""
        return F.mse_loss(logits, batch["labels"].to(logits.dtype), reduction="sum"), len(logits)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the score of a baseline that always predicts the mean label of the training examples."""
        train, valid = (np.concatenate([item["label"] for item in items]) for items in (train_items, valid_items))
        return Baseline("mean label", float(((valid - train.mean()) ** 2).mean()))


def _number(text: str, example: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ExampleError(example, f"the label is '{text}'; regression requires numbers")
    return number
