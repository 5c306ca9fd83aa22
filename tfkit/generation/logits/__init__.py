"""Logits rules: modify the scores of the next token, in the order in which they are listed.

| type | purpose |
|---|---|
| repetition_penalty | stop a model from repeating itself |
| presence_penalty | encourage new topics |
| frequency_penalty | make frequent words less likely |
| no_repeat_ngram | forbid repeated n-grams (summaries) |
| banned | exclude tokens |
| forced | prescribe the first tokens, such as the target language of a translation |
| min_length | prevent a text from ending too early |
| choices | restrict the text to a list of texts: a label, yes or no |
| regex | restrict the format of the text: a date, a number, a JSON object |
| temperature | make samples more or less random |
| top_k | sample only from the k most likely tokens |
| top_p | cut off the unlikely tail at a cumulative probability |
| min_p | cut off the tail relative to the most likely token; suits high temperatures |
| typical | exclude very likely and very unlikely tokens |
| epsilon | cut off tokens below a fixed probability |
| eta | like epsilon, but less strict where the entropy is high |
"""

from tfkit.generation.logits.base import Banned as Banned
from tfkit.generation.logits.base import Forced as Forced
from tfkit.generation.logits.base import LogitsRule as LogitsRule
from tfkit.generation.logits.base import MinLength as MinLength
from tfkit.generation.logits.guided import Choices as Choices
from tfkit.generation.logits.guided import Regex as Regex
from tfkit.generation.logits.truncation import Epsilon as Epsilon
from tfkit.generation.logits.truncation import Eta as Eta
from tfkit.generation.logits.truncation import FrequencyPenalty as FrequencyPenalty
from tfkit.generation.logits.truncation import MinP as MinP
from tfkit.generation.logits.truncation import NoRepeatNgram as NoRepeatNgram
from tfkit.generation.logits.truncation import PresencePenalty as PresencePenalty
from tfkit.generation.logits.truncation import RepetitionPenalty as RepetitionPenalty
from tfkit.generation.logits.truncation import Temperature as Temperature
from tfkit.generation.logits.truncation import TopK as TopK
from tfkit.generation.logits.truncation import TopP as TopP
from tfkit.generation.logits.truncation import Typical as Typical
