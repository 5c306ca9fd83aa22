"""Logits rules: what changes the scores of the next token before one is chosen, in the order they are listed in.

| type | choose it when |
|---|---|
| repetition_penalty | a model repeats itself |
| presence_penalty | it should mention something new |
| frequency_penalty | it says the same words too often |
| no_repeat_ngram | no n-gram may be repeated (summaries) |
| banned | some tokens may never be written |
| forced | all texts begin alike (the language of a translation) |
| min_length | a model ends its texts too soon |
| choices | the text is one of some that are known: a label, yes or no |
| regex | the text has a form: a date, a number, an object of JSON |
| temperature | samples should be more, or less, random |
| top_k | only so many tokens may be drawn |
| top_p | the unlikely tail is cut off, wherever it begins |
| min_p | the tail is cut off beside the most likely token, so that high temperatures stay sensible |
| typical | neither very likely nor very unlikely tokens are wanted |
| epsilon | tokens below a fixed probability are cut off |
| eta | the same, but less strict where the model is unsure |
"""

from tfkit.generation.logits.base import LogitsRule
from tfkit.generation.logits.guided import Choices, Regex
from tfkit.generation.logits.penalties import FrequencyPenalty, NoRepeatNgram, PresencePenalty, RepetitionPenalty
from tfkit.generation.logits.tokens import Banned, Forced, MinLength
from tfkit.generation.logits.truncation import Epsilon, Eta, MinP, Temperature, TopK, TopP, Typical

__all__ = [
    "Banned",
    "Choices",
    "Epsilon",
    "Eta",
    "Forced",
    "FrequencyPenalty",
    "LogitsRule",
    "MinLength",
    "MinP",
    "NoRepeatNgram",
    "PresencePenalty",
    "Regex",
    "RepetitionPenalty",
    "Temperature",
    "TopK",
    "TopP",
    "Typical",
]
