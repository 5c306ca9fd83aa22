"""Strategies: choose the next token.

| type | purpose |
|---|---|
| greedy | the most likely token at each step: fast; the default |
| sample | varied, natural texts such as stories and dialogue, with sampling rules |
| beam | tasks with one correct answer: translation, summaries |
| diverse_beam | several texts that differ from each other |
| contrastive | stories without sampling, where greedy search would loop |
| speculative | the output of greedy or sample, faster: a small model, further heads or earlier text draft the tokens |
"""

from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.beam import Beam, Contrastive, DiverseBeam
from tfkit.generation.strategy.rows import Greedy, Sample
from tfkit.generation.strategy.speculative import Speculative

__all__ = ["Beam", "Contrastive", "DiverseBeam", "Greedy", "Sample", "Speculative", "Strategy"]
