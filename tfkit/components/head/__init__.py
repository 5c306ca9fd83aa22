"""Heads.

| type | choose it when |
|---|---|
| language_model | the model writes: a decoder, or an encoder and a decoder |
| masked_lm | an encoder learns by filling in masked tokens (BERT) |
| discriminator | an encoder learns by finding replaced tokens (ELECTRA) |
| classifier | a text has a class; with an activation it is BERT's pooler |
| hidden | the vectors themselves are wanted |
"""

from tfkit.components.head.base import Head, TokenHead
from tfkit.components.head.classifier import Classifier
from tfkit.components.head.discriminator import Discriminator
from tfkit.components.head.hidden import Hidden
from tfkit.components.head.language_model import LanguageModel
from tfkit.components.head.masked_lm import MaskedLM

__all__ = ["Classifier", "Discriminator", "Head", "Hidden", "LanguageModel", "MaskedLM", "TokenHead"]
