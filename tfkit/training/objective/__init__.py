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

from tfkit.training.objective.base import Answers, Loss, Objective, Prediction
from tfkit.training.objective.chat import Chat
from tfkit.training.objective.completion import CausalLm, Completion
from tfkit.training.objective.labels import Classification, Regression
from tfkit.training.objective.masked_lm import MaskedLm
from tfkit.training.objective.reading import Reading
from tfkit.training.objective.replaced_token import NextSentence, ReplacedToken
from tfkit.training.objective.rewriting import Denoising, Rewriting, SpanCorruption
from tfkit.training.objective.rows import Batch, Item, Rows, TextRows
from tfkit.training.objective.seq2seq import Seq2Seq
from tfkit.training.objective.span import SpanObjective
from tfkit.training.objective.token_classification import TokenClassification

__all__ = [
    "Answers",
    "Batch",
    "CausalLm",
    "Chat",
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
