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

from tfkit.training.metric.base import BitsPerCharacter as BitsPerCharacter
from tfkit.training.metric.base import BitsPerSymbol as BitsPerSymbol
from tfkit.training.metric.base import LossMetric as LossMetric
from tfkit.training.metric.base import Metric as Metric
from tfkit.training.metric.base import Perplexity as Perplexity
from tfkit.training.metric.base import TextMetric as TextMetric
from tfkit.training.metric.base import as_compared as as_compared
from tfkit.training.metric.base import length_of as length_of
from tfkit.training.metric.base import ranges as ranges
from tfkit.training.metric.labels import R2 as R2
from tfkit.training.metric.labels import Accuracy as Accuracy
from tfkit.training.metric.labels import Auc as Auc
from tfkit.training.metric.labels import EntityF1 as EntityF1
from tfkit.training.metric.labels import MacroF1 as MacroF1
from tfkit.training.metric.labels import Mae as Mae
from tfkit.training.metric.labels import MicroF1 as MicroF1
from tfkit.training.metric.labels import Pearson as Pearson
from tfkit.training.metric.labels import Rmse as Rmse
from tfkit.training.metric.labels import Spearman as Spearman
from tfkit.training.metric.texts import Bleu as Bleu
from tfkit.training.metric.texts import Chrf as Chrf
from tfkit.training.metric.texts import ExactMatch as ExactMatch
from tfkit.training.metric.texts import Grammatical as Grammatical
from tfkit.training.metric.texts import Rouge as Rouge
