"""Metrics for labels, tags and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric


@register("metric", "accuracy")
class Accuracy(TextMetric):
    """100 * (words equal to the reference's word at the same position) / words. A label or tag counts as one word."""

    class Config(TextMetric.Config):
        """Options of accuracy."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the percentage of correct words."""
        pairs = [(one.split(" "), other.split(" ")) for one, other in zip(outputs, references, strict=True)]
        right = sum(word == expected for one, other in pairs for word, expected in zip(one, other, strict=False))
        return 100.0 * right / sum(max(len(one), len(other)) for one, other in pairs)


@register("metric", "macro_f1")
class MacroF1(TextMetric):
    """100 * mean over classes of 2 * true positives / (predicted + expected) (van Rijsbergen 1979).

    The classes are all words (labels or tags) in outputs and references.
    """

    class Config(TextMetric.Config):
        """Options of macro_f1."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the mean F1 in percent."""
        predicted: Counter[str] = Counter()
        expected: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for output, reference in zip(outputs, references, strict=True):
            for word, other in zip_longest(output.split(" "), reference.split(" ")):
                predicted.update([word] if word is not None else [])
                expected.update([other] if other is not None else [])
                right.update([word] if word == other else [])
        classes = predicted.keys() | expected.keys()
        return 100.0 * sum(2 * right[name] / (predicted[name] + expected[name]) for name in classes) / len(classes)


Entity = tuple[str, int, int]  # (type, first word, last word)


@register("metric", "entity_f1")
class EntityF1(TextMetric):
    """100 * 2 * correct / (predicted + expected) entities, compared as a whole (Tjong Kim Sang and De Meulder 2003).

    Tags B-type, I-type and O (also E- and S-) are parsed as in conlleval and seqeval: an entity ends before the first
    tag that cannot continue it, and I-type starts an entity unless it continues one of the same type.
    """

    samples = (
        ("B-place I-place O", "O B-time O B-place", "B-time I-time I-time"),
        ("B-place O O", "O B-place O B-time", "O B-time I-time"),
    )

    compares: ClassVar = "tags"

    class Config(TextMetric.Config):
        """Options of entity_f1."""

    def check_reference(self, reference: str) -> None:
        entities(reference.split(" "))

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the F1 over all entities in percent, or 0 if there are no entities."""
        predicted, expected, right = 0, 0, 0
        for output, reference in zip(outputs, references, strict=True):
            one, other = entities(output.split(" ")), entities(reference.split(" "))
            predicted, expected, right = predicted + len(one), expected + len(other), right + len(one & other)
        return 100.0 * 2 * right / (predicted + expected) if predicted + expected else 0.0


def entities(tags: list[str]) -> set[Entity]:
    """Parse tags into entities."""
    found: set[Entity] = set()
    start, before, kind = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, type_ = parted(tag)
        ends = before in "BI" and (prefix in "BSO" or type_ != kind)
        if before != "O" and (ends or before in "ES"):
            found.add((kind, start, place - 1))
        begins = prefix in "BS" or (prefix != "O" and (before in "ESO" or type_ != kind))
        start = place if begins else start
        before, kind = prefix, type_
    return found


def parted(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and type. Raise UsageError if it is invalid."""
    prefix, _, kind = tag.partition("-")
    if prefix not in ("B", "I", "E", "S", "O") or (prefix == "O" and kind):
        raise UsageError(
            f"entity_f1 requires tags such as B-place, I-place and O, got '{tag}'; use accuracy or macro_f1"
        )
    return prefix, kind


Floats = np.ndarray[Any, np.dtype[np.float64]]
SAMPLES = (("0.5", "-2", "3"), ("1", "3", "-1e1"))


def numbers(texts: Sequence[str], metric: str) -> Floats:
    """Parse texts as numbers. Raise UsageError if one is not a finite number."""
    values = np.asarray([_number(text, metric) for text in texts], dtype=np.float64)
    return values


def correlation(one: Floats, other: Floats) -> float:
    """Compute Pearson's r in percent. Return 0 if one side is constant, where r is undefined."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return 100.0 * float(np.clip((one * other).sum() / size, -1, 1)) if size else 0.0


def ranks(values: Floats) -> Floats:
    """Rank values from 1. Ties share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[place]
    return shared


def _number(text: str, metric: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UsageError(f"{metric} compares numbers, got '{text[:40]}'")
    return value


@register("metric", "pearson")
class Pearson(TextMetric):
    """100 * covariance / product of the standard deviations of outputs and references (Pearson 1895)."""

    samples = SAMPLES
    compares: ClassVar = "numbers"

    class Config(TextMetric.Config):
        """Options of pearson."""

    def check_reference(self, reference: str) -> None:
        numbers([reference], self.part_name)

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the correlation, from -100 to 100, or 0 if one side is constant."""
        return correlation(numbers(outputs, self.part_name), numbers(references, self.part_name))


@register("metric", "spearman")
class Spearman(TextMetric):
    """100 * Pearson's r of the ranks of outputs and references, where ties share their mean rank (Spearman 1904)."""

    samples = SAMPLES
    compares: ClassVar = "numbers"

    class Config(TextMetric.Config):
        """Options of spearman."""

    def check_reference(self, reference: str) -> None:
        numbers([reference], self.part_name)

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the correlation, from -100 to 100, or 0 if one side is constant."""
        return correlation(*(ranks(numbers(texts, self.part_name)) for texts in (outputs, references)))
