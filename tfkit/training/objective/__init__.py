"""Objectives: what training asks of a model, from the tokens of an example to the loss.

| type | choose it when |
|---|---|
| seq2seq | one text becomes another: an encoder-decoder learns to write the target, given the source (the original) |
| causal_lm | text is continued: a decoder learns the next token (GPT-style) |
| masked_lm | text is understood: an encoder learns to fill in hidden tokens (BERT-style) |
"""

from tfkit.training.objective.base import Batch, Item, Loss, Objective
from tfkit.training.objective.causal_lm import CausalLm
from tfkit.training.objective.masked_lm import MaskedLm
from tfkit.training.objective.seq2seq import Seq2Seq

__all__ = ["Batch", "CausalLm", "Item", "Loss", "MaskedLm", "Objective", "Seq2Seq"]
