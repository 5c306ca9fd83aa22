"""Labels of the training corpus in the order of the head's logits, classification, and regression."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.options import Dropout as Share
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.data.corpus.base import as_json, cells, joined
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.objective.base import Loss, Prediction
from tfkit.training.objective.baseline import Baseline, Floats, Ids, unigram_baseline
from tfkit.training.objective.reading import Reading, ReadingAnswers, ReadingRows, head_of, is_text, texts_of
from tfkit.training.objective.rows import Batch, Example, Item, logger


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort the distinct labels of each target, numerically if all are integers."""
    targets: dict[str, dict[str, str]] = {}
    for label in labels:
        for target, text in cells(label).items():
            targets.setdefault(target, {})[text] = label
    return tuple(texts[text] for texts in targets.values() for text in _sorted(texts))


def _sorted(texts: Iterable[str]) -> list[str]:
    numbers = all(text.removeprefix("-").isdecimal() for text in texts)
    return sorted(texts, key=lambda text: (int(text) if numbers else 0, text))


def unknown(labels: Iterable[str], known: Sequence[str]) -> str:
    """Name the labels that are missing from the training corpus, as the reason for excluding examples."""
    others = sorted(set(labels) - set(known))
    missing = f"not in the training corpus: {', '.join(map(repr, others[:6]))}" + ", ..." * (len(others) > 6)
    return missing if others else "no label is present"


def one_word(label: str) -> str:
    """Replace spaces with no-break spaces, because metrics compare words."""
    return label.replace(" ", "\u00a0")


def named(labels: Sequence[str], classes: int) -> list[str]:
    """Return a name for each class: its label, or its index if it has none."""
    return [labels[number] if number < len(labels) else str(number) for number in range(classes)]


class ClassRows(ReadingRows):
    """Base class of rows whose labels are classes."""

    labelled = True
    counts: Counter[str] | None = None  # of the labels in the training corpus

    def learn(self, examples: Sequence[Example]) -> None:
        """Count the labels of the training examples, and order them unless their order is known."""
        if self.counts is None:
            self.counts = Counter(label for example in examples for label in self.labels_in(example))
            self.labels = self.labels or ordered(self.counts)
            for target, texts in self.targets.items():
                if target and len(texts) < 2:
                    raise DataError(f"the target '{target}' is constant or missing everywhere: nothing to learn")

    @property
    def targets(self) -> dict[str, dict[str, int]]:
        """Classes of each target by label; a single target has no name."""
        found: dict[str, dict[str, int]] = {}
        for target, text in (pair for label in self.labels for pair in cells(label).items()):
            classes = found.setdefault(target, {})
            classes[text] = len(classes)
        return found or {"": {}}

    def _tell_unknown(self, every: Sequence[str], what: str) -> None:
        """Warn about labels excluded from the loss because they are unknown."""
        if number := sum(label not in self.labels for label in every):
            of = f"{number:,} of {len(every):,} {what}"
            logger.warning("%s: %s dropped: %s", self._name, of, unknown(every, self.labels))

    def weights(self, wanted: Mapping[str, float] | Literal["balanced"], classes: int) -> Tensor:
        """Return the weight of each class in the training loss. Raise UsageError for unknown labels."""
        if isinstance(wanted, Mapping):
            for label in (label for label in wanted if label not in self.labels):
                text = f"'{label}' is not a label of the training corpus, which has {', '.join(self.labels[:20])}"
                raise UsageError(f"objective.class_weights: {text}")
            found = [wanted.get(label, 1.0) for label in self.labels]
        else:
            counts = np.maximum([(self.counts or Counter())[label] for label in self.labels], 1)
            targets = np.split(counts, np.cumsum([len(texts) for texts in self.targets.values()])[:-1])
            found = [weight for own in targets for weight in own.sum() / (len(own) * own)]
        return torch.tensor(found + [1.0] * (classes - len(found)), dtype=torch.float64)


class Classifying(Reading):
    """Base class of objectives that train a head to tell classes apart."""

    class Config(Reading.Config):
        label_smoothing: Share = Field(
            0.0, description="fraction of the target probability spread over all classes, in training only"
        )
        class_weights: dict[str, PositiveFloat] | Literal["balanced"] | None = Field(
            None,
            description="weight of each label in the loss, in training only: a mapping, 1 for labels that it omits; or "
            "balanced: number of labels / (classes * number of this label)",
        )

    config: Config
    rows: ClassRows
    weights: Tensor | None = None  # of the classes, in training

    def attach(self, model: Model) -> None:
        """Check that the head has a class for each label, and compute the class weights."""
        head, labels = head_of(model, self.config.head), self.rows.labels
        classes = head.output.out_features if hasattr(head, "output") else len(labels)
        if labels and (classes < len(labels) or (classes > len(labels) and len(self.rows.targets) > 1)):
            text = f"the head has {classes} classes, but the training corpus has {len(labels)} labels"
            raise UsageError(f"{text}; use num_classes: labels")
        if self.config.class_weights is not None:
            self.weights = self.rows.weights(self.config.class_weights, classes)

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Sum the cross-entropies of `logits` [n classes] over `labels` [n] or [n targets], where -1 is missing."""
        labels, smoothing = batch["labels"], self.config.label_smoothing if training else 0.0
        sizes = [logits.shape[1]] if labels.dim() == 1 else list(map(len, self.rows.targets.values()))
        weights = (
            [None] * len(sizes) if self.weights is None or not training else torch.split(self.weights.to(logits), sizes)
        )
        parts = zip(torch.split(logits, sizes, dim=1), labels.reshape(len(labels), -1).unbind(1), weights, strict=True)
        losses = [
            F.cross_entropy(part, own, weight, ignore_index=-1, reduction="sum", label_smoothing=smoothing)
            for part, own, weight in parts
        ]
        return torch.stack(losses).sum(), len(labels) if labels.dim() == 1 else int((labels >= 0).sum())


class LabelledRows(ClassRows):
    """Texts with class indices."""

    fields = ("text", "label")
    tokenized = ("text", "second")
    vectors_for = "text"

    @property
    def separator(self) -> str | None:
        """Text between the labels of an example, if it may have several."""
        return dict(self.config)["separator"] if dict(self.config)["multi_label"] else None

    @property
    def has_several(self) -> bool:
        """True if an example has several labels, or several targets with a label each."""
        return self.separator is not None or "" not in self.targets

    def labels_in(self, example: Example) -> Sequence[str]:
        """Return the labels of an example; those of several targets as JSON objects."""
        targets = cells(example.get("label", ""))
        text = next(iter(targets.values()))
        found = as_json(text)
        if self.separator is None:
            if isinstance(found, list):
                raise DataError(f"the label {text[:40]} is a list; set multi_label: true, or select an element (.0)")
            return [joined({target: text}) for target, text in targets.items() if text]
        if len(targets) > 1:
            raise DataError(f"multi_label requires one column of labels, got {', '.join(targets)}")
        every = found if isinstance(found, list) else text.split(self.separator)
        return [label for label in dict.fromkeys(str(one).strip() for one in every) if label]

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` and `label`. Texts are truncated to the model's maximum length.

        Examples without a known label are excluded from the loss, but not from metrics.
        """
        labels = self.read_labels(examples)
        items = self._texts(examples, tokenizer, max_length)
        usable = [number for number, example in enumerate(examples) if is_text(example)]
        self._left_out(len(items) - len(usable), len(items), "the text is empty")
        kept = [items[number] | {"label": label} for number in usable if (label := labels[number]) is not None]
        every = [label for number in usable for label in self.labels_in(examples[number])]
        why = unknown(every, self.labels) if usable else "the texts are empty"
        self._left_out(len(usable) - len(kept), len(items), why)
        if self.has_several:
            self._tell_unknown(every, "labels")
        return self._usable(kept, len(items), why)

    def read_labels(self, examples: Sequence[Example]) -> list[Ids | None]:
        """Return the class of each target, -1 if missing, None if all are; of several labels, 1 if present, else 0."""
        self._column(examples, "label")
        self.learn(examples)
        targets, found = self.targets, list[Ids | None]()
        for example in examples:
            if self.separator is not None:
                found.append(np.isin(self.labels, self.labels_in(example)).astype(np.int32))
                continue
            own = cells(example["label"])
            classes = np.asarray([texts.get(own.get(target, ""), -1) for target, texts in targets.items()], np.int32)
            found.append(classes if (classes >= 0).any() else None)
        return found

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate inputs and `labels` [rows], or [rows targets], or [rows classes] of several labels."""
        labels = torch.from_numpy(np.stack([item["label"] for item in items]))
        labels = labels if labels.is_floating_point() else labels.long()
        return super().collate(items, rng) | {"labels": labels if self.has_several else labels[:, 0]}


class Labels(ReadingAnswers):
    """Most likely label of a text or of each target, or all labels that are likely enough."""

    objective: Classification
    rows: LabelledRows
    reference = "label"
    metrics = ("accuracy", "macro_f1")

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return `label`, its `probability`, and all `labels` with probabilities in descending order, per text.

        With several targets, return these for each of the `targets`; with `multi_label`, all `chosen` and `labels`.
        """
        config, targets = self.objective.config, self.rows.targets
        independent = config.multi_label or head_of(model, config.head).config.has_independent_classes()
        predictions: list[Prediction] = []
        for logits in self._logits(model, self._text_items(model, examples, tokenizer)):
            names = [named(self.rows.labels, len(logits))] if "" in targets else list(map(list, targets.values()))
            parts = zip(names, torch.split(logits, list(map(len, names))), strict=True)
            found = [_ranked(own, part.sigmoid() if independent else part.softmax(0)) for own, part in parts]
            predictions.append(found[0] if "" in targets else {"targets": dict(zip(targets, found, strict=True))})
            if config.multi_label:
                likely = [label for label, chance in found[0]["labels"].items() if chance >= config.threshold]
                predictions[-1] = {"chosen": likely, "labels": found[0]["labels"]}
        return [texts_of(example) | one for example, one in zip(examples, predictions, strict=True)]

    def text(self, prediction: Prediction) -> str:
        """Return the label as one word, those of targets as JSON; of several, a word or nothing for each class."""
        if "chosen" in prediction:
            return self._words(prediction["chosen"])
        return joined(
            {target: one_word(one["label"]) for target, one in prediction.get("targets", {"": prediction}).items()}
        )

    def chances(self, prediction: Prediction) -> str:
        """Return the probability of each class as JSON, in the order of the classes."""
        labels = {target: one["labels"] for target, one in prediction.get("targets", {"": prediction}).items()}
        words = {target: {one_word(name): own[name] for name in ordered(own)} for target, own in labels.items()}
        return joined({target: json.dumps(chances) for target, chances in words.items()})

    def wanted(self, example: Example) -> str:
        """Return the reference in the form of `text`; a missing target is empty."""
        if self.rows.separator is not None:
            return self._words(self.rows.labels_in(example))
        return joined({target: one_word(label) for target, label in cells(example["label"]).items()})

    def _words(self, labels: Sequence[str]) -> str:
        known = dict.fromkeys((*self.rows.labels, *labels))
        return " ".join(one_word(label) if label in labels else "" for label in known)


def _ranked(names: Sequence[str], probabilities: Tensor) -> Prediction:
    """Return the most likely label, its probability, and all labels in descending order of probability."""
    labels = dict(sorted(zip(names, probabilities.tolist(), strict=True), key=lambda pair: -pair[1]))
    label = next(iter(labels))
    return {"label": label, "probability": labels[label], "labels": labels}


@register("objective", "classification")
class Classification(Classifying):
    """Loss = -log p(label | text), or given two texts if the corpus has `second` (Devlin et al. 2018: 1810.04805).

    With several targets (`fields: {label: [color, shape]}`), the mean over those that are present. With `multi_label`,
    each class is present or absent, and the binary cross-entropy is summed over the classes.
    """

    rows_type = LabelledRows
    answers_type = Labels
    heads = ("classifier",)
    gives = Reading.gives | {"inputs"}
    capabilities = frozenset({"likelihood", "words", "numbers", "probabilities", "soft_targets"})

    class Config(Classifying.Config):
        multi_label: bool = Field(
            False, description="a text has any number of labels: a JSON list, or text with `separator` between them"
        )
        separator: str = Field("|", min_length=1, description="text between two labels, with multi_label")
        threshold: Share = Field(0.5, description="least probability of a predicted label, with multi_label")

    config: Config
    rows: LabelledRows

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Compute the cross-entropy of `logits` [rows classes], or the binary one if `multi_label` is set."""
        if not self.config.multi_label:
            return super().head_loss(logits, batch, training)
        smoothing = self.config.label_smoothing if training else 0.0
        weights = self.weights.to(logits) if self.weights is not None and training else None
        present = F.pad(batch["labels"], (0, logits.shape[1] - batch["labels"].shape[1])).to(logits.dtype)
        wanted = present * (1 - smoothing) + smoothing / 2
        loss = F.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weights, reduction="sum")
        return loss, len(logits)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the scores of a baseline that predicts the label frequencies of the training examples."""
        train, valid = (np.concatenate([item["label"] for item in items]) for items in (train_items, valid_items))
        found = None if self.rows.has_several else unigram_baseline(train, valid, max(1, len(self.rows.labels)))
        return None if found is None else Baseline("most frequent label", found.loss, found.accuracy)


MISSING = ("", "nan", "null")


class NumberedRows(LabelledRows):
    """Texts with a number, or with one for each target."""

    separator = None
    stats: tuple[Floats, Floats] | None = None  # mean and deviation of each target in the training corpus

    @property
    def targets(self) -> dict[str, dict[str, int]]:
        """Names of the targets; a single target has none."""
        return {target: {} for target in self.labels or ("",)}

    def labels_in(self, example: Example) -> Sequence[str]:
        """Return the names of the targets."""
        return tuple(filter(None, cells(example.get("label", ""))))

    def learn(self, examples: Sequence[Example]) -> None:
        """Learn the names of the targets, and the mean and deviation of the present numbers of each."""
        if self.stats is None and examples:
            self.labels = self.labels or tuple(self.labels_in(examples[0]))
            present = np.ma.masked_invalid(np.stack(self._numbers(examples)))
            spread = np.ma.ptp(present, axis=0).filled(math.nan)
            self.stats = present.mean(axis=0).data, np.where(spread > 0, present.std(axis=0).data, 1.0)
            for target in (target for target, one in zip(self.targets, spread, strict=True) if not one > 0):
                name = f"target '{target}'" if target else "label"
                raise DataError(f"the {name} is constant or missing everywhere: nothing to learn")

    def read_labels(self, examples: Sequence[Example]) -> list[Ids | None]:
        """Return the number of each target, NaN if missing, or None if all are."""
        # targets of a trained model need not vary in other data, and a single one has no name to learn
        if not self.labels and any(map(self.labels_in, examples[:1])):
            self.learn(examples)
        return [None if np.isnan(numbers).all() else numbers for numbers in self._numbers(examples)]

    def _numbers(self, examples: Sequence[Example]) -> list[Floats]:
        found, targets = [], self.targets
        for place, own in enumerate(map(cells, self._column(examples, "label")), 1):
            if own.keys() != targets.keys():
                text = f"the label has the targets '{', '.join(own)}', but the training corpus '{', '.join(targets)}'"
                raise ExampleError(place, text)
            found.append(np.asarray([_number(own[target], place, target) for target in targets], np.float64))
        return found


class Numbers(ReadingAnswers):
    """Predicted number of a text, or of each target."""

    rows: NumberedRows
    reference = "label"
    metrics = ("pearson", "spearman")
    sample_texts: ClassVar = {"label": ("1.5", "-2", "0", "3e-1", "4")}

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the `value` of each text, or the `values` of its targets."""
        found = []
        for logits in self._logits(model, self._text_items(model, examples, tokenizer)):
            values = zip(named(self.rows.labels, logits.numel()), logits.reshape(-1).tolist(), strict=True)
            found.append({"values": dict(values)} if logits.dim() else {"value": logits.item()})
        return [texts_of(example) | one for example, one in zip(examples, found, strict=True)]

    def text(self, prediction: Prediction) -> str:
        """Return the number as text, those of targets as JSON."""
        values = prediction["values"] if "values" in prediction else {"": prediction["value"]}
        return joined({target: repr(value) for target, value in values.items()})

    def wanted(self, example: Example) -> str:
        """Return the number as text, those of targets as JSON, where a missing one is empty."""
        return joined({name: text * (text.lower() not in MISSING) for name, text in cells(example["label"]).items()})


@register("objective", "regression")
class Regression(Reading):
    """Loss = (value - label)^2 for a text, or for two texts if the corpus has `second` (Devlin et al. 2018: STS-B).

    With several targets (`fields: {label: [mass, charge]}`), the mean over those that are present. A standardized head
    measures each error in deviations of its target in the training corpus.
    """

    rows_type = NumberedRows
    answers_type = Numbers
    heads = ("regression",)
    gives = Reading.gives | {"inputs"}
    capabilities = frozenset({"numbers"})  # no likelihood: squared error
    rows: NumberedRows
    units: Floats | float = 1.0  # of the loss

    def attach(self, model: Model) -> None:
        """Check the number of targets; give an untrained standardized head their means and deviations."""
        head, targets, stats = head_of(model, self.config.head), self.rows.labels, self.rows.stats
        outputs, standardized = dict(head.config).get("num_targets") or 0, hasattr(head, "deviation")
        if outputs != len(targets):
            text = f"the head has num_targets: {outputs or 'none'}, but `label` names {len(targets)} targets"
            raise UsageError(f"{text}; use num_targets: labels and fields: {{label: [COLUMN, ...]}}, or neither")
        if stats is not None and standardized and not head.mean.any() and (head.deviation == 1).all():
            head.mean.copy_(torch.from_numpy(stats[0]))
            head.deviation.copy_(torch.from_numpy(stats[1]))
        self.units = head.deviation.double().cpu().numpy() if standardized else 1.0

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the loss of the head's output, in its deviations if it is standardized."""
        buffers = dict(head_of(model, self.config.head).named_buffers(recurse=False))
        return super().loss(model, batch | buffers, training)

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Sum the squared errors of `logits` [rows] or [rows targets]: twice the NLL of a unit normal."""
        labels = batch["labels"].to(logits.dtype)
        if "deviation" in batch:
            logits, labels = logits / batch["deviation"], labels / batch["deviation"]
        if labels.dim() > 1:
            present = ~labels.isnan()
            logits, labels = logits[present], labels[present]
        return F.mse_loss(logits, labels, reduction="sum"), len(logits)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the score of a baseline that always predicts the mean label of the training examples."""
        train, valid = (np.stack([item["label"] for item in items]) for items in (train_items, valid_items))
        errors = (valid - np.nanmean(train, axis=0)) / self.units
        return Baseline("mean label", float(np.nanmean(errors**2)))


def _number(text: str, example: int, target: str) -> float:
    if target and text.lower() in MISSING:
        return math.nan
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    name = f"label '{target}'" if target else "label"
    raise ExampleError(example, f"the {name} is '{text}'; regression requires numbers")
