"""Metrics of trained models.

| type | choose it when |
|---|---|
| perplexity | language models are compared on held-out text |
| bits_per_character | language models with different tokenizers are compared |
| accuracy | texts have a class, or words have a tag |
| macro_f1 | rare classes matter as much as frequent ones |
| entity_f1 | tags mark entities: B-place, I-place, O |
| pearson | texts have numbers, and their magnitude matters |
| spearman | texts have numbers, and only their order matters |
| bleu | translations are compared with published results |
| chrf | the target language has rich morphology, or texts are short |
| rouge | summaries are compared with published results |
| exact_match | there is exactly one right answer |
| grammatical | any sentence of the grammar of the corpus `lano` is correct |
"""

from tfkit.training.metric.base import (
    BitsPerCharacter,
    LossMetric,
    Metric,
    Perplexity,
    TextMetric,
    as_compared,
    length_of,
    ranges,
)
from tfkit.training.metric.labels import Accuracy, EntityF1, MacroF1, Pearson, Spearman
from tfkit.training.metric.texts import Bleu, Chrf, ExactMatch, Grammatical, Rouge

__all__ = [
    "Accuracy",
    "BitsPerCharacter",
    "Bleu",
    "Chrf",
    "EntityF1",
    "ExactMatch",
    "Grammatical",
    "LossMetric",
    "MacroF1",
    "Metric",
    "Pearson",
    "Perplexity",
    "Rouge",
    "Spearman",
    "TextMetric",
    "as_compared",
    "length_of",
    "ranges",
]
