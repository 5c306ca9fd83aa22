"""Base classes of metrics, and the metrics computed from the loss."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from tfkit.core.errors import DataError, UsageError, installing, optional
from tfkit.core.facts import RecipeConfig
from tfkit.core.options import PositiveInt, as_tuple
from tfkit.core.output import counted
from tfkit.core.registry import register
from tfkit.core.slots import MetricFacts
from tfkit.data.corpus.base import without_tag
from tfkit.data.tokenizer.backend import panics_as_errors
from tfkit.data.tokenizer.symbols import Pattern, matches_of

GROUPS = 50  # maximum number of values of `by`
ODD = re.compile(r"[^\w.-]+")  # characters of a value that the name of its score replaces


def _ascending(bounds: tuple[int, ...]) -> tuple[int, ...]:
    if any(first >= second for first, second in pairwise(bounds)):
        raise ValueError(f"lengths must be in ascending order, got {', '.join(map(str, bounds))}")
    return bounds


Bounds = Annotated[tuple[PositiveInt, ...], BeforeValidator(as_tuple), AfterValidator(_ascending)]


class Metric(MetricFacts):
    """Base class of metrics. `reads` determines which method a metric implements."""

    class Config(MetricFacts.Config, RecipeConfig):
        """Options of all metrics."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def measures(cls) -> str:
        """Return the capability that the metric requires of an objective."""
        if cls.reads == "text":
            return cls.compares
        return "characters" if cls.per_character else "likelihood"

    def ready(self) -> None:
        """Raise UsageError if a required library is missing. Called before anything is written."""
        if self.package is not None and find_spec(self.package) is None:
            raise UsageError(f"{self.part_name} needs the package {self.package}: {installing('train')}")

    def check_reference(self, reference: str) -> None:
        """Raise UsageError if the metric cannot use this reference. Called before training starts."""

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """Score texts against their references. Raise UsageError for metrics that are computed from the loss."""
        raise UsageError(f"{self.part_name} is computed from the {self.reads}, not from texts")

    def groups(self, examples: Sequence[Mapping[str, str]], fields: Sequence[str]) -> dict[str, list[int]]:
        """Return the indices of the examples that are also scored separately, by the name of the score.

        Raise DataError if the field `by` has too many values. `fields` are those of which the length is measured.
        """
        if self.config.by is None:
            return {}
        the, own = f"{self.part_name}: by: {self.config.by}", self.config.scores()
        if lacking := next((example for example in examples if self.config.by not in example), None):
            raise DataError(f"{the}: an example has only {', '.join(lacking)}")
        values = [example[self.config.by] for example in examples]
        names = {value: f"{own[0]}.{ODD.sub('_', value) or '_'}" for value in sorted(set(values))}
        if len(names) > GROUPS:
            raise DataError(f"{the} has {len(names):,} different values; the limit is {GROUPS}")
        if (twice := Counter([*own, *names.values()]).most_common(1)[0])[1] > 1:
            raise DataError(f"{the}: two scores would have the same name: {twice[0]}")
        return grouped([names[value] for value in values], names.values())

    def of_sources(self, sources: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return additional scores of a baseline that copies from the sources. There are none by default."""
        return {}

    def check_units(self, texts: Sequence[str]) -> None:
        """Raise UsageError if the units of these texts cannot be told apart."""

    def units(self, texts: Sequence[str]) -> int:
        """Return the number of characters, or other units that the loss is averaged over if `per_character`."""
        return sum(map(len, texts))

    def from_loss(self, nats_per_target: float) -> float:
        """Convert a loss in nats per target to a score. Raise UsageError for metrics that compare texts."""
        raise UsageError(f"{self.part_name} is computed from {self.reads}s, not from the loss")


class LossMetric(Metric):
    """Base class of metrics computed from the loss."""

    reads: ClassVar = "loss"


class TextMetric(Metric):
    """Base class of metrics that compare texts with `compare`."""

    reads: ClassVar = "text"

    class Config(Metric.Config):
        by_length: Bounds = Field((), description="also score length ranges separately: [4, 8] adds 1-4, 5-8 and 9+")

        def scores(self) -> tuple[str, ...]:
            name, *groups = super().scores()
            return (name, *(f"{name}.{part}" for part in ranges(self.by_length)), *groups)

    def groups(self, examples: Sequence[Mapping[str, str]], fields: Sequence[str]) -> dict[str, list[int]]:
        """Return the examples of each value of `by` and of each nonempty length range."""
        bounds = self.config.by_length if isinstance(self.config, TextMetric.Config) else ()
        names = [f"{self.config.scores()[0]}.{part}" for part in ranges(bounds)]
        lengths = [length_of(example, fields) for example in examples] if bounds else []
        found = grouped([names[bisect_left(bounds, length)] for length in lengths], names)
        return super().groups(examples, fields) | found

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """Compute the corpus-level score. Raise UsageError if there are no texts or their numbers differ."""
        if len(outputs) != len(references):
            got = f"{counted(len(outputs), 'output')} and {counted(len(references), 'reference')}"
            raise UsageError(f"{self.part_name} requires one reference per output, got {got}")
        if not outputs:
            raise UsageError(f"{self.part_name} has no outputs to compare")
        return self.compare(list(outputs), list(references))

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Score outputs against their references; both lists have the same length and are not empty."""
        raise NotImplementedError(f"{type(self).__name__} has no compare")


def grouped(values: Sequence[str], names: Iterable[str]) -> dict[str, list[int]]:
    """Return the indices of each of the names among the values, without names that do not occur."""
    rows = {name: [row for row, value in enumerate(values) if value == name] for name in names}
    return {name: found for name, found in rows.items() if found}


def ranges(bounds: Sequence[int]) -> tuple[str, ...]:
    """Name the length ranges with these upper bounds, such as 1-4, 5-8 and 9+. Return () without bounds."""
    firsts = [1, *(bound + 1 for bound in bounds)]
    inner = [f"{first}-{last}" if first < last else str(last) for first, last in zip(firsts, bounds, strict=False)]
    return (*inner, f"{firsts[-1]}+") if bounds else ()


def as_compared(metric: Metric, example: Mapping[str, str], text: str) -> str:
    """Prepend the source to an output or reference if the metric compares continuations."""
    example = without_tag(example)
    return f"{example['source']} {text}".strip() if metric.compares == "continuations" and "source" in example else text


def length_of(example: Mapping[str, str], fields: Sequence[str]) -> int:
    """Return the field `length` of an example, set by probes, or else the number of words in these fields."""
    example = without_tag(example)
    return int(example["length"]) if "length" in example else sum(len(example[field].split()) for field in fields)


def sacrebleu_metrics(metric: str) -> Any:
    """Import `sacrebleu.metrics`. If it is missing, raise UsageError with installation instructions."""
    return optional("sacrebleu.metrics", "train", f"{metric} needs")


@register("metric", "perplexity")
class Perplexity(LossMetric):
    """exp(nats per target) (Jelinek et al. 1977)."""

    higher_is_better: ClassVar = False

    def from_loss(self, nats_per_target: float) -> float:
        """Return the perplexity, or inf on overflow."""
        try:
            return math.exp(nats_per_target)
        except OverflowError:
            return math.inf


@register("metric", "bits_per_character")
class BitsPerCharacter(LossMetric):
    """Loss of a text in nats / (ln 2 * number of its characters) (Graves 2013, arXiv 1308.0850)."""

    higher_is_better: ClassVar = False
    per_character: ClassVar = True

    def from_loss(self, nats_per_target: float) -> float:
        return nats_per_target / math.log(2)


@register("metric", "bits_per_symbol")
class BitsPerSymbol(BitsPerCharacter):
    """Loss of a text in nats / (ln 2 * number of its symbols), which are the same for all tokenizers."""

    class Config(LossMetric.Config):
        symbol: Pattern | None = Field(
            None, description="regular expression of a symbol, such as Cl|Br|[A-Za-z]; none: text between white space"
        )

    config: Config

    def check_units(self, texts: Sequence[str]) -> None:
        """Raise UsageError if no text has white space, unless a symbol is defined."""
        if self.config.symbol is None and texts and all(len(text.split()) < 2 for text in texts):
            raise UsageError("bits_per_symbol: no text has white space; write {type: bits_per_symbol, symbol: '.'}")

    def units(self, texts: Sequence[str]) -> int:
        """Count the symbols. Raise DataError if the pattern fails."""
        symbol = self.config.symbol
        cut: Callable[[str], Sequence[object]] = str.split if symbol is None else matches_of(symbol).pre_tokenize_str
        with panics_as_errors():
            return sum(len(cut(text)) for text in texts)
