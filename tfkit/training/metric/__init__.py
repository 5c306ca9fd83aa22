"""Metrics for trained models.

| type | choose it when |
|---|---|
| perplexity | a language model is judged by the text it did not see |
| bits_per_character | language models with unlike tokens are compared |
| accuracy | texts have a class, or words a tag |
| macro_f1 | rare classes count as much as frequent ones |
| entity_f1 | tags mark entities: B-place, I-place, O |
| pearson | a text has a number, and its size matters |
| spearman | a text has a number, and only the order matters |
| bleu | translations are compared with published ones |
| chrf | translations into a language of rich word forms, or short texts |
| rouge | summaries are compared with published ones |
| exact_match | there is one right answer |
| grammatical | any sentence of the corpus `lano` is right |
"""

from tfkit.training.metric.base import LossMetric, Metric, TextMetric, as_compared, length_of, ranges
from tfkit.training.metric.labels import Accuracy, EntityF1, MacroF1, Pearson, Spearman
from tfkit.training.metric.loss import BitsPerCharacter, Perplexity
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
