"""Follow the arrows of a cycle, some steps from each node that is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols


@register("corpus", "depo")
class Depo(Probe):
    """Probe: arrows of one cycle, then nodes; target = them, each with the node k arrows on (Depo, arXiv 2512.17351).

    The length is k, the depth of reasoning: the source says `hop` k times. What lies between is never written, so that
    a model has to follow all k arrows within its layers. The paper has a token for each k, and one k for each node.
    """

    class Config(Probe.Config):
        """Options of depo."""

        length: Drawn = Field(2, description="the most arrows to follow in train, valid and test")
        longest: Drawn = Field(4, description="the most arrows to follow in longer, which begins after length")
        fewest: Drawn = Field(3, description="the fewest nodes of a cycle")
        nodes: Drawn = Field(6, description="the most nodes of a cycle")
        symbols: Drawn = Field(12, description="how many names of nodes there are")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if not self.fewest <= self.nodes <= self.symbols:
                text = f"a cycle has {self.fewest} to {self.nodes} nodes of {self.symbols} names; "
                yield Problem("nodes", f"{text}write fewest <= nodes <= symbols")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        config = self.config
        cycle = rng.sample(symbols(config.symbols), rng.randint(config.fewest, config.nodes))
        following = {node: cycle[(place + 1) % len(cycle)] for place, node in enumerate(cycle)}
        arrows = rng.sample(list(following.items()), len(cycle))
        asked = rng.sample(cycle, len(cycle))
        answers = {node: cycle[(place + length) % len(cycle)] for place, node in enumerate(cycle)}
        source = [*(word for arrow in arrows for word in arrow), *["hop"] * length, "?", *asked]
        return source, [word for node in asked for word in (node, answers[node])]
