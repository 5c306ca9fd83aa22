"""Metrics for labels, tags and numbers."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric


@register("metric", "accuracy")
class Accuracy(TextMetric):
    """100 * (words equal to the reference's word at the same position) / words. A label or tag counts as one word."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        pairs = [(one.split(" "), other.split(" ")) for one, other in zip(outputs, references, strict=True)]
        right = sum(word == expected for one, other in pairs for word, expected in zip(one, other, strict=False))
        return 100.0 * right / sum(max(len(one), len(other)) for one, other in pairs)


def counted(outputs: Sequence[str], references: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Count the words of outputs and references, and those that are equal at a position; ignore empty words."""
    words, right = Counter[str](), Counter[str]()
    for output, reference in zip(outputs, references, strict=True):
        for word, other in zip_longest(output.split(" "), reference.split(" "), fillvalue=""):
            words.update([word, other])
            right.update([word] * (word == other))
    del words[""], right[""]
    return words, right


@register("metric", "macro_f1")
class MacroF1(TextMetric):
    """100 * mean over classes of 2 * true positives / (predicted + expected) (van Rijsbergen 1979).

    The classes are all words (labels or tags) in outputs and references.
    """

    def compare(self, outputs: list[str], references: list[str]) -> float:
        words, right = counted(outputs, references)
        return 100.0 * sum(2 * right[name] / words[name] for name in words) / max(1, len(words))


@register("metric", "micro_f1")
class MicroF1(TextMetric):
    """100 * 2 * true positives / (predicted + expected), summed over all classes (van Rijsbergen 1979)."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        words, right = counted(outputs, references)
        return 100.0 * 2 * right.total() / max(1, words.total())


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

    def check_reference(self, reference: str) -> None:
        entities(reference.split(" "))

    def compare(self, outputs: list[str], references: list[str]) -> float:
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


class NumberMetric(TextMetric):
    """Base class of metrics that compare numbers; `of` scores all outputs against their references."""

    of: Callable[[Floats, Floats], float]
    samples = (("0.5", "-2", "3"), ("1", "3", "-1e1"))
    compares: ClassVar = "numbers"

    def check_reference(self, reference: str) -> None:
        self._number(reference)

    def compare(self, outputs: list[str], references: list[str]) -> float:
        return float(self.of(*(np.asarray(list(map(self._number, texts))) for texts in (outputs, references))))

    def _number(self, text: str) -> float:
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(text)):
                return number
        raise UsageError(f"{self.part_name} compares numbers, got '{text[:40]}'")


@register("metric", "pearson")
class Pearson(NumberMetric):
    """100 * covariance / product of the standard deviations (Pearson 1895); 0 if outputs or references are constant."""

    of = staticmethod(correlation)


@register("metric", "spearman")
class Spearman(NumberMetric):
    """100 * Pearson's r of the ranks of outputs and references, where ties share their mean rank (Spearman 1904)."""

    of = staticmethod(lambda outputs, references: correlation(ranks(outputs), ranks(references)))


@register("metric", "r2")
class R2(NumberMetric):
    """100 * (1 - squared errors / squared deviations of the references from their mean); 0 if these are constant."""

    def of(self, outputs: Floats, references: Floats) -> float:
        variation = float(((references - references.mean()) ** 2).sum())
        return 100.0 * (1 - float(((references - outputs) ** 2).sum()) / variation) if variation else 0.0


@register("metric", "mae")
class Mae(NumberMetric):
    """Mean of |output - reference|, in the unit of the numbers."""

    higher_is_better: ClassVar = False
    of = staticmethod(lambda outputs, references: np.abs(outputs - references).mean())


@register("metric", "rmse")
class Rmse(NumberMetric):
    """Square root of the mean of (output - reference)^2, in the unit of the numbers."""

    higher_is_better: ClassVar = False
    of = staticmethod(lambda outputs, references: np.sqrt(((outputs - references) ** 2).mean()))


@register("metric", "auc")
class Auc(TextMetric):
    """100 * share of pairs of a text with and one without the class that its probability ranks correctly (Hanley 1982).

    A tie counts half. Of two exclusive classes, the second is scored; of more, or with multi_label, the mean over the
    classes that are present in some references, but not in all. Without any, 50.
    """

    compares: ClassVar = "probabilities"

    def compare(self, outputs: list[str], references: list[str]) -> float:
        # a plain text is certain of its words
        chances = [json.loads(one) if one.startswith("{") else dict.fromkeys(one.split(" "), 1.0) for one in outputs]
        present = [set(reference.split(" ")) - {""} for reference in references]
        classes = list(dict.fromkeys(name for names in (*chances, *present) for name in names))
        exclusive = not any(" " in reference for reference in references)
        areas = []
        for name in classes[1:] if exclusive and len(classes) == 2 else classes:
            own = np.asarray([name in names for names in present])
            rank = ranks(np.asarray([chance.get(name, 0.0) for chance in chances]))
            pairs = own.sum() * (~own).sum()
            if pairs:
                areas.append((rank[own].sum() - own.sum() * (own.sum() + 1) / 2) / pairs)
        return 100.0 * float(np.mean(areas)) if areas else 50.0
