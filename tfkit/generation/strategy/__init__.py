"""Strategies: how the next token is chosen.

| type | choose it when |
|---|---|
| greedy | the most likely token each time is good enough, and it has to be quick; the default |
| sample | texts are to differ, and to read as the model's own: stories, dialogue; with rules of sampling |
| beam | there is one right text, such as a translation or a summary |
| diverse_beam | several texts are wanted that differ from each other |
| contrastive | stories from a model that goes round in circles by greedy search, without sampling |
| speculative | the text of greedy or sample, sooner: a small run drafts it, or the text repeats itself |
"""

from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.beam import Beam, DiverseBeam
from tfkit.generation.strategy.contrastive import Contrastive
from tfkit.generation.strategy.rows import Greedy, Sample
from tfkit.generation.strategy.speculative import Speculative

__all__ = ["Beam", "Contrastive", "DiverseBeam", "Greedy", "Sample", "Speculative", "Strategy"]
