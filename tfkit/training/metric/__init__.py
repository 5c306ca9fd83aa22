"""Metrics: how good a trained model is.

| type | choose it when |
|---|---|
| perplexity | a language model is judged by the text it did not see |
| bleu | translations are compared with published ones |
| chrf | translations into a language of rich word forms, or short texts |
| exact_match | there is one right answer |
"""

from tfkit.training.metric.base import LossMetric, Metric, TextMetric
from tfkit.training.metric.bleu import Bleu
from tfkit.training.metric.chrf import Chrf
from tfkit.training.metric.exact_match import ExactMatch
from tfkit.training.metric.perplexity import Perplexity

__all__ = ["Bleu", "Chrf", "ExactMatch", "LossMetric", "Metric", "Perplexity", "TextMetric"]
