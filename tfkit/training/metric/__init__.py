"""Metrics of trained models.

| type | choose it when |
|---|---|
| perplexity | language models are compared on held-out text |
| bits_per_character | language models with different tokenizers are compared |
| bits_per_symbol | as bits_per_character, for music, molecules, ids and other symbols |
| accuracy | texts have a class, or words have a tag |
| micro_f1 | texts have several labels (multi_label) |
| auc | classes are ranked by probability, and no threshold is set |
| macro_f1 | rare classes matter as much as frequent ones |
| entity_f1 | tags mark entities: B-place, I-place, O |
| pearson | texts have numbers, and their magnitude matters |
| spearman | texts have numbers, and only their order matters |
| r2 | texts have numbers, and the share of explained variance matters |
| mae, rmse | texts have numbers, and errors matter in their unit; rmse weighs large ones more |
| bleu | translations are compared with published results |
| chrf | the target language has rich morphology, or texts are short |
| rouge | summaries are compared with published results |
| exact_match | there is exactly one right answer |
| grammatical | any sentence of the grammar of the corpus `lano` is correct |
"""

from tfkit.training.metric.base import (
    BitsPerCharacter,
    BitsPerSymbol,
    LossMetric,
    Metric,
    Perplexity,
    TextMetric,
    as_compared,
    length_of,
    ranges,
)
from tfkit.training.metric.labels import R2, Accuracy, Auc, EntityF1, MacroF1, Mae, MicroF1, Pearson, Rmse, Spearman
from tfkit.training.metric.texts import Bleu, Chrf, ExactMatch, Grammatical, Rouge

__all__ = [
    "R2",
    "Accuracy",
    "Auc",
    "BitsPerCharacter",
    "BitsPerSymbol",
    "Bleu",
    "Chrf",
    "EntityF1",
    "ExactMatch",
    "Grammatical",
    "LossMetric",
    "MacroF1",
    "Mae",
    "Metric",
    "MicroF1",
    "Pearson",
    "Perplexity",
    "Rmse",
    "Rouge",
    "Spearman",
    "TextMetric",
    "as_compared",
    "length_of",
    "ranges",
]
