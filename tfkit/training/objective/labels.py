"""Labels of the training corpus in the order of the head's logits, classification, and regression."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from tfkit.core.errors import ExampleError, UsageError
from tfkit.core.options import Dropout as Share
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.loss import cross_entropy
from tfkit.models import Model
from tfkit.training.objective.base import Prediction
from tfkit.training.objective.baseline import Baseline, unigram_baseline
from tfkit.training.objective.reading import Reading, ReadingAnswers, ReadingRows, head_of, is_text, texts_of
from tfkit.training.objective.rows import Batch, Example, Item, Rows


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort distinct labels, numerically if all are integers."""
    different = set(labels)
    numbers = all(label.removeprefix("-").isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label) if numbers else 0, label)))


def learn(rows: Rows, examples: Sequence[Example]) -> None:
    """Collect the labels of the training examples, unless they are already known."""
    if rows.labelled and not rows.labels:
        rows.labels = ordered(label for example in examples for label in rows.labels_in(example))


def unknown(labels: Iterable[str], known: Sequence[str]) -> str:
    """Name the labels that are missing from the training corpus, as the reason for excluding examples."""
    others = sorted(set(labels) - set(known))
    return f"not in the training corpus: {', '.join(map(repr, others[:6]))}" + ", ..." * (len(others) > 6)


def check_classes(head: Any, labels: Sequence[str]) -> None:
    """Raise UsageError if the head has fewer classes than there are labels."""
    classes = head.output.out_features if hasattr(head, "output") else len(labels)
    if labels and classes < len(labels):
        raise UsageError(
            f"the head has {classes} classes, but the training corpus has {len(labels)} labels; use num_classes: labels"
        )


def one_word(label: str) -> str:
    """Replace spaces with no-break spaces, because metrics compare words."""
    return label.replace(" ", "\u00a0")


def named(labels: Sequence[str], classes: int) -> list[str]:
    """Return a name for each class: its label, or its index if it has none."""
    return [labels[number] if number < len(labels) else str(number) for number in range(classes)]


class LabelledRows(ReadingRows):
    """Texts with class indices."""

    fields = ("text", "label")
    tokenized = ("text", "second")
    labelled = True
    vectors_for = "text"

    def labels_in(self, example: Example) -> Sequence[str]:
        """Return the example's label."""
        return [example["label"]] if example.get("label") else []

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` and `label`. Texts are truncated to the model's maximum length.

        Examples whose label is not in the training corpus are excluded from the loss, but not from metrics.
        """
        labels = self._column(examples, "label")
        learn(self, examples)
        items = self._texts(examples, tokenizer, max_length)
        numbers = {label: number for number, label in enumerate(self.labels)}
        texts = [
            (label, item) for label, item, usable in zip(labels, items, map(is_text, examples), strict=True) if usable
        ]
        self._left_out(len(items) - len(texts), len(items), "the text is empty")
        kept = [
            item | {"label": np.asarray([numbers[label]], dtype=np.int32)} for label, item in texts if label in numbers
        ]
        why = unknown((label for label, _ in texts), self.labels) if texts else "the texts are empty"
        self._left_out(len(texts) - len(kept), len(items), why)
        return self._usable(kept, len(items), why)

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate inputs and `labels` [rows]."""
        labels = np.concatenate([item["label"] for item in items]).astype(np.int64)
        return super().collate(items, rng) | {"labels": torch.from_numpy(labels)}


class Labels(ReadingAnswers):
    """Most likely label of a text."""

    reference = "label"
    metrics = ("accuracy", "macro_f1")

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return `label`, its `probability`, and all `labels` with probabilities in descending order, per text."""
        items = self._text_items(model, examples, tokenizer)
        independent = head_of(model, self.objective.config.head).config.has_independent_classes()
        predictions = []
        for example, logits in zip(examples, self._logits(model, items), strict=True):
            probabilities = (logits.sigmoid() if independent else logits.softmax(0)).tolist()
            names = named(self.rows.labels, len(probabilities))
            labels = dict(sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1]))
            label = next(iter(labels))
            predictions.append({**texts_of(example), "label": label, "probability": labels[label], "labels": labels})
        return predictions

    def text(self, prediction: Prediction) -> str:
        """Return the label as one word."""
        return one_word(prediction["label"])

    def wanted(self, example: Example) -> str:
        """Return the label as one word."""
        return one_word(example["label"])


@register("objective", "classification")
class Classification(Reading):
    """Loss = -log p(label | text), or given two texts if the corpus has `second` (Devlin et al. 2018: 1810.04805)."""

    rows_type = LabelledRows
    answers_type = Labels
    heads = ("classifier",)
    capabilities = frozenset({"likelihood", "words", "numbers", "soft_targets"})

    class Config(Reading.Config):
        """Options of classification."""

        label_smoothing: Share = Field(
            0.0, description="fraction of the target probability spread over all classes, in training only"
        )

    config: Config

    def attach(self, model: Model) -> None:
        """Check that the head has enough classes, and that they are exclusive."""
        head = head_of(model, self.config.head)
        check_classes(head, self.rows.labels)
        if head.config.has_independent_classes():
            raise UsageError(
                "the head's classes are independent, for multi-label data; classification requires exclusive classes"
            )

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Compute the cross-entropy of `logits` [rows classes]."""
        smoothing = self.config.label_smoothing if training else 0.0
        return cross_entropy(logits, batch["labels"], smoothing), len(logits)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the scores of a baseline that predicts the label frequencies of the training examples."""
        train, valid = (np.concatenate([item["label"] for item in items]) for items in (train_items, valid_items))
        found = unigram_baseline(train, valid, max(1, len(self.rows.labels)))
        return None if found is None else Baseline("most frequent label", found.loss, found.accuracy)


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
