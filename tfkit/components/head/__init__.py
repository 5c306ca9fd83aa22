"""Heads.

| type | choose it when |
|---|---|
| language_model | the model generates text: a decoder, or an encoder and a decoder |
| masked_lm | an encoder learns by filling in masked tokens (BERT) |
| discriminator | an encoder learns by finding replaced tokens (ELECTRA) |
| classifier | each text has a class; with an activation, this is BERT's pooler and classifier |
| token_classifier | each word has a tag |
| span | the answer to a question is a span of the text |
| regression | each text has a number |
| pooled | each text is mapped to a vector: BERT's pooler, or a sentence encoder |
| hidden | the output is the hidden states |
"""

from tfkit.components.head.base import Head as Head
from tfkit.components.head.base import TokenHead as TokenHead
from tfkit.components.head.pooled import Classifier as Classifier
from tfkit.components.head.pooled import Pooled as Pooled
from tfkit.components.head.pooled import RegressionHead as RegressionHead
from tfkit.components.head.tokens import Discriminator as Discriminator
from tfkit.components.head.tokens import Hidden as Hidden
from tfkit.components.head.tokens import LanguageModel as LanguageModel
from tfkit.components.head.tokens import MaskedLM as MaskedLM
from tfkit.components.head.tokens import SpanHead as SpanHead
from tfkit.components.head.tokens import TokenClassifier as TokenClassifier
