"""List all that a node of a graph depends on, in an order in which it can be done."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols

Graph = Mapping[str, Sequence[str]]  # node -> the nodes that it depends on


@register("corpus", "brevo")
class Brevo(Probe):
    """Probe: edges of a graph without cycles, and a node; target = what it depends on (Brevo, arXiv 2512.17351).

    The target names the node and all below it, each after all that it depends on itself. Of several such orders it is
    the one that takes the first name of the alphabet wherever there is a choice (the paper draws one, and takes any).
    The length is the number of nodes, of which one without edges is not seen; of an edge, what is needed comes first.
    """

    class Config(Probe.Config):
        """Options of brevo."""

        shortest: Drawn = Field(2, description="the fewest nodes in train, valid and test")
        length: Drawn = Field(6, description="the most nodes in train, valid and test")
        longest: Drawn = Field(9, description="the most nodes in longer, which begins after length")
        degree: Drawn = Field(2, description="the most edges from a node, and the most to it")
        symbols: Drawn = Field(16, description="how many names of nodes there are")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            most = self.longest if self.split == "longer" else self.length
            if self.shortest < 2:
                yield Problem("shortest", "a graph of one node has no edge; write 2 or more")
            if most > self.symbols:
                yield Problem("symbols", f"are too few for a graph of {most} nodes")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        graph = self._graph(rng.sample(symbols(self.config.symbols), length), rng)
        edges = [(needed, node) for node, below in graph.items() for needed in below]
        rng.shuffle(edges)
        asked = list(graph)[-1]
        return [*(word for edge in edges for word in edge), "?", asked], ordered(graph, asked)

    def _graph(self, nodes: Sequence[str], rng: random.Random) -> Graph:
        """Some nodes that depend on nothing, then each on some of those before it that have few edges yet."""
        most, edges = self.config.degree, dict.fromkeys(nodes, 0)
        graph: dict[str, Sequence[str]] = {}
        roots = rng.randint(1, (len(nodes) - 1) // 4 + 1)
        for place, node in enumerate(nodes):
            free = [one for one in nodes[:place] if edges[one] < most]
            graph[node] = rng.sample(free, rng.randint(1, min(len(free), most))) if place >= roots else ()
            for below in graph[node]:
                edges[below] += 1
        return graph


def ordered(graph: Graph, asked: str) -> list[str]:
    """The node that is asked for and all below it, each after those that it depends on."""
    wanted, found = {asked}, [asked]
    for node in found:
        new = [below for below in graph[node] if below not in wanted]
        wanted.update(new)
        found += new
    order: list[str] = []
    while len(order) < len(found):
        ready = [node for node in found if node not in order and all(below in order for below in graph[node])]
        order.append(min(ready))
    return order
