"""Metrics of generated texts."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tfkit.core.bounds import ORDER
from tfkit.core.component import Problem
from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import NonNegativeInt, Order, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.drawn import first_sentence
from tfkit.data.corpus.reasoning import Breadth, Depth, Grammar, Rules
from tfkit.training.metric.base import TextMetric, sacrebleu_metrics


@register("metric", "exact_match")
class ExactMatch(TextMetric):
    """100 * (outputs equal to their reference) / (number of outputs)."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        right = sum(output == reference for output, reference in zip(outputs, references, strict=True))
        return 100.0 * right / len(outputs)


@register("metric", "bleu")
class Bleu(TextMetric):
    """100 * brevity penalty * geometric mean of 1- to 4-gram precisions (Papineni 2002; Post 2018: 1804.08771)."""

    package: ClassVar = "sacrebleu"

    class Config(TextMetric.Config):
        lowercase: bool = Field(False, description="ignore case")
        tokenize: Literal["13a", "intl", "char", "zh"] | None = Field(
            "13a",
            description="tokenization into words; none: texts are already tokenized, and words are separated by spaces",
        )

    config: Config

    def compare(self, outputs: list[str], references: list[str]) -> float:
        lowercase, tokenize = self.config.lowercase, self.config.tokenize or "none"
        # `force` suppresses sacrebleu's warning about tokenized texts
        bleu = sacrebleu_metrics("bleu").BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
        return float(bleu.corpus_score(outputs, [references]).score)


@register("metric", "chrf")
class Chrf(TextMetric):
    """F-score of character n-grams, with recall weighted twice (Popovic 2015, aclanthology.org/W15-3049)."""

    package: ClassVar = "sacrebleu"

    class Config(TextMetric.Config):
        lowercase: bool = Field(False, description="ignore case")
        char_order: Order = Field(6, description="longest n-gram of characters")
        word_order: NonNegativeInt = Field(0, le=ORDER.most, description="longest n-gram of words; 2 is chrF++")

    config: Config

    def compare(self, outputs: list[str], references: list[str]) -> float:
        lowercase, characters, words = self.config.lowercase, self.config.char_order, self.config.word_order
        chrf = sacrebleu_metrics("chrf").CHRF(lowercase=lowercase, char_order=characters, word_order=words)
        return float(chrf.corpus_score(outputs, [references]).score)


_WORD = re.compile(r"[a-z0-9]+")
_FOREIGN = re.compile(r"[^\W_a-zA-Z0-9]")  # letters and digits that are in no word
_WRITTEN = {"1": 1, "2": 2, "l": "L"}


def _as_written(value: Any) -> Any:
    """Normalize an n-gram order written in quotes or in lowercase. Reject `true`, which equals 1 in Python."""
    if isinstance(value, (bool, float)):
        raise ValueError(f"expected 1, 2 or 'L', got {str(value).lower()}")
    return _WRITTEN.get(value, value) if isinstance(value, str) else value


RougeOrder = Annotated[
    Literal[1, 2, "L"], BeforeValidator(_as_written, json_schema_input_type=Literal[1, 2, "1", "2", "L", "l"])
]


@register("metric", "rouge")
class Rouge(TextMetric):
    """100 * mean over texts of the F1 of common n-grams, or of the longest common subsequence (Lin 2004: W04-1013).

    Words are runs of a-z and digits, lowercased and unstemmed, as in the package rouge_score. The score is named
    `rouge`, or `rouge_1` and `rouge_2` for of: 1 and of: 2. The score of the lead baseline is named `rouge.lead`.
    """

    class Config(TextMetric.Config):
        of: RougeOrder = Field(
            "L", description="unit of comparison: 1 (words), 2 (word pairs), or L (longest common subsequence)"
        )
        lead: bool = Field(False, description="also score the first sentence of each source, as a baseline")

        def scores(self) -> tuple[str, ...]:
            name, *ranges = super().scores()
            own = name if self.of == "L" else f"{name}_{self.of}"
            return (own, *(own + one.removeprefix(name) for one in ranges), *([f"{own}.lead"] if self.lead else []))

    config: Config

    def of_sources(self, sources: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Score the lead baseline, if `lead` is set."""
        if not self.config.lead:
            return {}
        leads = [first_sentence(source)[0] for source in sources]
        return {self.config.scores()[-1]: self.score(leads, references)}

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Return the mean F1 in percent. Texts without words score 0, with a warning."""
        if any(not words(text) or _FOREIGN.search(text) for text in (*outputs, *references) if text.strip()):
            what = "texts without a word of a-z and 0-9, or with other letters, which ROUGE drops; use chrf or bleu"
            warnings.warn(f"rouge: {what}", TfkitWarning, stacklevel=2)
        pairs = zip(outputs, references, strict=True)
        return 100.0 * sum(self._f1(words(one), words(other)) for one, other in pairs) / len(outputs)

    def _f1(self, output: list[str], reference: list[str]) -> float:
        if self.config.of == "L":
            common, size = longest_common(output, reference), len(output) + len(reference)
        else:
            one, other = grams(output, self.config.of), grams(reference, self.config.of)
            common, size = (one & other).total(), one.total() + other.total()
        return 2 * common / size if size else 0.0


def words(text: str) -> list[str]:
    """Split a text into lowercase words."""
    return _WORD.findall(text.lower())


def grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of length `order`."""
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Compute the length of the longest common subsequence."""
    best = [0] * (len(other) + 1)
    for word in one:
        before = 0  # value of the previous row and column
        for place, target in enumerate(other, 1):
            here = best[place]
            best[place] = before + 1 if word == target else max(here, best[place - 1])
            before = here
    return best[-1]


@register("metric", "grammatical")
class Grammatical(TextMetric):
    """100 * (outputs that turn their source into a sentence of the corpus `lano`) / (number of outputs).

    References are ignored. The options must equal those of the corpus (Allen-Zhu and Li 2023, arXiv 2305.13673).
    """

    compares: ClassVar = "continuations"

    class Config(TextMetric.Config):
        depth: Depth = Field(3, description="levels of the grammar")
        breadth: Breadth = Field(3, description="number of symbols per level, which is also the number of words")
        rules: Rules = Field(3, description="rules per symbol")
        grammar_seed: Seed = Field(1, description="seed of the grammar rules")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if not Grammar(self.depth, self.breadth, self.rules, self.grammar_seed).possible:
                yield Problem("rules", f"{self.breadth} symbols do not allow that many distinct rules")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.grammar = Grammar(config.depth, config.breadth, config.rules, config.grammar_seed)
        if self.grammar.possible:
            right = [" ".join(self.grammar.sentence(random.Random(number))) for number in range(3)]
            self.samples = (tuple(right), ("no", "sentence", "of it"))

    def check_reference(self, reference: str) -> None:
        if not self.grammar.derives(reference.split()):
            raise UsageError(
                f"'{reference}' is not a sentence of the grammar of {self.part_name}; use the options of the corpus"
            )

    def compare(self, outputs: list[str], references: list[str]) -> float:
        return 100.0 * sum(self.grammar.derives(output.split()) for output in outputs) / len(outputs)
