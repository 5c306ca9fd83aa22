"""Objectives: from example tokens to the training loss.

| type | choose it when |
|---|---|
| seq2seq | one text becomes another: an encoder-decoder learns to write the target, given the source (the original) |
| completion | one text becomes another: a decoder writes the target after the source (instructions, answers) |
| causal_lm | text is continued: a decoder learns the next token (GPT-style) |
| masked_lm | text is understood: an encoder learns to fill in hidden tokens (BERT-style) |
| next_sentence | the same, with pairs of texts: whether one follows the other (BERT) |
| replaced_token | the same with less computation: an encoder finds tokens that a generator replaced (ELECTRA) |
| span_corruption | an encoder-decoder learns from text alone, to write hidden spans (T5) |
| denoising | an encoder-decoder learns from text alone, to reconstruct corrupted text (BART) |
| classification | a text, or two, has a class |
| token_classification | every word has a tag: parts of speech, entities |
| span | the answer to a question is a piece of a text |
| regression | a text, or two, has a number |
"""

from tfkit.training.objective.base import Answers, Loss, Objective, Prediction
from tfkit.training.objective.causal_lm import CausalLm
from tfkit.training.objective.classification import Classification
from tfkit.training.objective.completion import Completion
from tfkit.training.objective.denoising import Denoising
from tfkit.training.objective.masked_lm import MaskedLm
from tfkit.training.objective.next_sentence import NextSentence
from tfkit.training.objective.reading import Reading
from tfkit.training.objective.regression import Regression
from tfkit.training.objective.replaced_token import ReplacedToken
from tfkit.training.objective.rewriting import Rewriting
from tfkit.training.objective.rows import Batch, Item, Rows, TextRows
from tfkit.training.objective.seq2seq import Seq2Seq
from tfkit.training.objective.span import SpanObjective
from tfkit.training.objective.span_corruption import SpanCorruption
from tfkit.training.objective.token_classification import TokenClassification

__all__ = [
    "Answers",
    "Batch",
    "CausalLm",
    "Classification",
    "Completion",
    "Denoising",
    "Item",
    "Loss",
    "MaskedLm",
    "NextSentence",
    "Objective",
    "Prediction",
    "Reading",
    "Regression",
    "ReplacedToken",
    "Rewriting",
    "Rows",
    "Seq2Seq",
    "SpanCorruption",
    "SpanObjective",
    "TextRows",
    "TokenClassification",
]
