"""Close all open brackets."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, lettered


@register("corpus", "brackets")
class Brackets(Probe):
    """Probe: target = the brackets that close the source, a prefix of Dyck-k (Hewitt et al. 2020, arXiv 2010.07515).

    The source may be closed already: then the target is `done`.
    """

    class Config(Probe.Config):
        """Options of brackets."""

        kinds: Drawn = Field(4, description="k, the kinds of brackets")
        depth: Drawn = Field(6, description="how many may be open at once")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        """A walk that opens or closes with equal probability where it can do both."""
        words: list[str] = []
        stack: list[int] = []
        for _ in range(length):
            if stack and (len(stack) == self.config.depth or rng.random() < 0.5):
                words.append(lettered("close", stack.pop()))
            else:
                stack.append(rng.randrange(self.config.kinds))
                words.append(lettered("open", stack[-1]))
        return words, [lettered("close", kind) for kind in reversed(stack)] or ["done"]
