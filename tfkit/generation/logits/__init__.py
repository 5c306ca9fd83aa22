"""Logits rules: what changes the scores of the next token before one is chosen, in the order they are listed in.

| type | choose it when |
|---|---|
| repetition_penalty | a model goes round in circles |
| presence_penalty | it is to speak of something new |
| frequency_penalty | it says the same words too often |
| no_repeat_ngram | nothing longer than a few words may return (summaries) |
| banned | some tokens may never be written |
| forced | all texts begin alike (the language of a translation) |
| min_length | a model ends its texts too soon |
"""

from tfkit.generation.logits.banned import Banned
from tfkit.generation.logits.base import LogitsRule
from tfkit.generation.logits.forced import Forced
from tfkit.generation.logits.frequency_penalty import FrequencyPenalty
from tfkit.generation.logits.min_length import MinLength
from tfkit.generation.logits.no_repeat_ngram import NoRepeatNgram
from tfkit.generation.logits.presence_penalty import PresencePenalty
from tfkit.generation.logits.repetition_penalty import RepetitionPenalty

__all__ = [
    "Banned",
    "Forced",
    "FrequencyPenalty",
    "LogitsRule",
    "MinLength",
    "NoRepeatNgram",
    "PresencePenalty",
    "RepetitionPenalty",
]
