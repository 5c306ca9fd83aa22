"""Objectives: conversion of examples to batches, and the training loss.

| type | choose it when |
|---|---|
| seq2seq | texts are mapped to texts: an encoder-decoder predicts the target from the source (the original) |
| completion | texts are mapped to texts: a decoder continues the source with the target (instructions, answers) |
| chat | conversations: a decoder generates the assistant's turns, formatted with a chat template |
| causal_lm | text is generated: a decoder predicts the next token (GPT-style) |
| masked_lm | text is encoded: an encoder predicts masked tokens (BERT-style) |
| next_sentence | text pairs are encoded: masked_lm, plus a prediction of whether one text follows the other (BERT) |
| replaced_token | compute is limited: an encoder detects tokens that a generator replaced (ELECTRA) |
| span_corruption | an encoder-decoder is pretrained on plain text: it predicts masked spans (T5) |
| denoising | an encoder-decoder is pretrained on plain text: it restores corrupted text (BART) |
| classification | texts or text pairs have a class |
| token_classification | every word has a tag: parts of speech, entities |
| span | the answer to a question is a span of a text |
| regression | texts or text pairs have a number |
"""

from tfkit.training.objective.base import Answers as Answers
from tfkit.training.objective.base import Loss as Loss
from tfkit.training.objective.base import Objective as Objective
from tfkit.training.objective.base import Prediction as Prediction
from tfkit.training.objective.chat import Chat as Chat
from tfkit.training.objective.completion import CausalLm as CausalLm
from tfkit.training.objective.completion import Completion as Completion
from tfkit.training.objective.labels import Classification as Classification
from tfkit.training.objective.labels import Regression as Regression
from tfkit.training.objective.masked_lm import MaskedLm as MaskedLm
from tfkit.training.objective.reading import Reading as Reading
from tfkit.training.objective.replaced_token import NextSentence as NextSentence
from tfkit.training.objective.replaced_token import ReplacedToken as ReplacedToken
from tfkit.training.objective.rewriting import Denoising as Denoising
from tfkit.training.objective.rewriting import Rewriting as Rewriting
from tfkit.training.objective.rewriting import SpanCorruption as SpanCorruption
from tfkit.training.objective.rows import Batch as Batch
from tfkit.training.objective.rows import Item as Item
from tfkit.training.objective.rows import Rows as Rows
from tfkit.training.objective.rows import TextRows as TextRows
from tfkit.training.objective.seq2seq import Seq2Seq as Seq2Seq
from tfkit.training.objective.span import SpanObjective as SpanObjective
from tfkit.training.objective.token_classification import TokenClassification as TokenClassification
