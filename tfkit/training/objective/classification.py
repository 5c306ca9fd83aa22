"""Say which class a text belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.options import Dropout as Share
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.loss import cross_entropy
from tfkit.training.baseline import Baseline, Ids, unigram_baseline
from tfkit.training.objective.base import Batch, Example, Item, Prediction
from tfkit.training.objective.labels import check_classes, named, one_word, unknown
from tfkit.training.objective.reading import Reading, head_of, is_text, texts_of


@register("objective", "classification")
class Classification(Reading):
    """Loss = -log p(label | text), or of two texts where the corpus gives `second` (Devlin et al. 2018: 1810.04805)."""

    fields: ClassVar = ("text", "label")
    heads: ClassVar = ("classifier",)
    tokenized: ClassVar = ("text", "second")
    labelled: ClassVar = True
    reference: ClassVar = "label"
    answers: ClassVar = frozenset({"words", "numbers"})
    metrics: ClassVar = ("accuracy", "macro_f1")

    class Config(Reading.Config):
        """Options of classification."""

        label_smoothing: Share = Field(0.0, description="share of the target spread over all classes, in training only")

    config: Config

    def labels_in(self, example: Example) -> Sequence[str]:
        """Its label."""
        return [example["label"]] if example.get("label") else []

    def attach(self, model: Any) -> None:
        """Check that the head has a class for each label."""
        head = head_of(model, self.config.head)
        check_classes(head, self.labels)
        if head.config.has_independent_classes():
            raise UsageError("the head's classes are independent, for texts of several; classification trains others")

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        """Items `text` and `label`; a text is cut to what the model can read.

        An example of a label that the training corpus does not have is left out of the loss; metrics count it.
        """
        labels = self.column(examples, "label")
        self.learn(examples)
        items = self.read_texts(examples, tokenizer, max_length)
        numbers = {label: number for number, label in enumerate(self.labels)}
        texts = [
            (label, item) for label, item, there in zip(labels, items, map(is_text, examples), strict=True) if there
        ]
        self.left_out(len(items) - len(texts), len(items), "the text is empty")
        kept = [
            item | {"label": np.asarray([numbers[label]], dtype=np.int32)} for label, item in texts if label in numbers
        ]
        why = unknown((label for label, _ in texts), self.labels) if texts else "the texts are empty"
        self.left_out(len(texts) - len(kept), len(items), why)
        return self.usable(kept, len(items), why)

    def targets(self, items: Sequence[Item], width: int) -> Mapping[str, Ids]:
        """`labels` [rows]."""
        return {"labels": np.concatenate([item["label"] for item in items]).astype(np.int64)}

    def nats(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Cross-entropy of `logits` [rows classes]."""
        smoothing = self.config.label_smoothing if training else 0.0
        return cross_entropy(logits, batch["labels"], smoothing), len(logits)

    def predict(self, model: Any, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Of each text the `label`, its `probability`, and the probability of all `labels`, the likeliest first."""
        items = self.read_texts(examples, tokenizer, model.blueprint.last.max_length)
        independent = head_of(model, self.config.head).config.has_independent_classes()
        predictions = []
        for example, logits in zip(examples, self.all_said(model, items), strict=True):
            probabilities = (logits.sigmoid() if independent else logits.softmax(0)).tolist()
            names = named(self.labels, len(probabilities))
            labels = dict(sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1]))
            label = next(iter(labels))
            predictions.append({**texts_of(example), "label": label, "probability": labels[label], "labels": labels})
        return predictions

    def answer(self, prediction: Prediction) -> str:
        """The label, as one word."""
        return one_word(prediction["label"])

    def wanted(self, example: Example) -> str:
        """The label, as one word."""
        return one_word(example["label"])

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Each label as often as in the training examples, whatever the text."""
        train, valid = (np.concatenate([item["label"] for item in items]) for items in (train_items, valid_items))
        found = unigram_baseline(train, valid, max(1, len(self.labels)))
        return None if found is None else Baseline("most frequent label", found.loss, found.accuracy)
