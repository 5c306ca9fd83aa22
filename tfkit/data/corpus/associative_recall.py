"""Find the values that belong to keys."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, lettered


@register("corpus", "associative_recall")
class AssociativeRecall(Probe):
    """Probe: pairs of key and value, then keys; target = them with their values (MQAR, Arora 2023, arXiv 2312.04927).

    The length is the number of pairs; every key is asked for once, in random order. The target says each key before its
    value, so that a value is looked up by the symbol before it.
    """

    class Config(Probe.Config):
        """Options of associative_recall."""

        shortest: Drawn = Field(4, description="the fewest pairs in train, valid and test")
        length: Drawn = Field(8, description="the most pairs in train, valid and test")
        longest: Drawn = Field(16, description="the most pairs in longer, which begins after length")
        keys: Drawn = Field(32, description="how many keys there are; as many values")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        count = self.config.keys
        keys = rng.sample(range(count), min(length, count))
        values = {key: rng.randrange(count) for key in keys}
        pairs = [word for key in keys for word in (lettered("k", key), lettered("v", values[key]))]
        asked = rng.sample(keys, len(keys))
        answer = [word for key in asked for word in (lettered("k", key), lettered("v", values[key]))]
        return [*pairs, "?", *(lettered("k", key) for key in asked)], answer
