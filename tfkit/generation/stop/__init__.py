"""Stop rules: when a text is done. A text ends as soon as one of the rules says so.

| type | choose it when |
|---|---|
| end_token | the model has learned where its texts end; the default |
| strings | a text ends where it says something, such as an empty line |
| length | all texts are to be short, whatever max_new_tokens allows |
| time | an answer must come in time |
"""

from tfkit.generation.stop.base import StopRule, WrittenRow
from tfkit.generation.stop.end_token import EndToken
from tfkit.generation.stop.length import Length
from tfkit.generation.stop.strings import Strings
from tfkit.generation.stop.time import Time

__all__ = ["EndToken", "Length", "StopRule", "Strings", "Time", "WrittenRow"]
