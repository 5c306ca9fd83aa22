"""Probes of reasoning, knowledge and grammar, after Physics of Language Models (Allen-Zhu, 2023 to 2025)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn, PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.data.corpus.probes import Probe, lettered, symbols

# tighter bounds, since a sentence has up to 3^depth words and rules are sampled from breadth^3
Depth = Annotated[int, Field(ge=1, le=10)]
Breadth = Annotated[int, Field(ge=1, le=50)]
Rules = Annotated[int, Field(ge=1, le=1_000)]
CHILDREN = (2, 3)  # possible numbers of symbols on a rule's right side
Rule = tuple[int, ...]


@dataclass(frozen=True)
class Grammar:
    """A grammar with `depth` levels of `breadth` symbols below the root, each with `rules` rules drawn with `seed`."""

    depth: int
    breadth: int
    rules: int
    seed: int

    @cached_property
    def levels(self) -> list[list[list[Rule]]]:
        """Rules by level and symbol, the root's level first; the symbols of a level share no rule."""
        rng = random.Random(f"grammar {self.depth} {self.breadth} {self.rules} {self.seed}")
        every = [rule for size in CHILDREN for rule in product(range(self.breadth), repeat=size)]
        levels: list[list[list[Rule]]] = []
        for level in range(self.depth):
            parents = 1 if level == 0 else self.breadth
            drawn = rng.sample(every, parents * self.rules)
            levels.append([drawn[parent::parents] for parent in range(parents)])
        return levels

    @property
    def possible(self) -> bool:
        """True if enough distinct rules exist for all symbols."""
        available = sum(pow(self.breadth, size) for size in CHILDREN)
        return bool(self.breadth * self.rules <= available)

    @property
    def least(self) -> int:
        """Minimum number of words in a sentence."""
        return int(CHILDREN[0] ** self.depth)

    def sentence(self, rng: random.Random) -> list[str]:
        """Sample a sentence, choosing rules uniformly."""
        line = [0]
        for level in self.levels:
            line = [child for symbol in line for child in rng.choice(level[symbol])]
        words = symbols(self.breadth)
        return [words[symbol] for symbol in line]

    def derives(self, words: Sequence[str]) -> bool:
        """True if the words form a sentence, by bottom-up parsing from every start position."""
        numbers = {word: number for number, word in enumerate(symbols(self.breadth))}
        if not words or not set(words) <= set(numbers):
            return False
        # ends[symbol][place]: possible end positions of the symbol starting at `place`
        ends = [
            [{place + 1} if numbers[word] == one else set() for place, word in enumerate(words)]
            for one in range(self.breadth)
        ]
        for level in reversed(self.levels):
            ends = [[_ends(rules, ends, place) for place in range(len(words))] for rules in level]
        return len(words) in ends[0][0]


def _ends(rules: Sequence[Rule], ends: Sequence[Sequence[set[int]]], place: int) -> set[int]:
    """Return the end positions that a symbol starting at `place` can reach, given those of its children."""
    positions: set[int] = set()
    for rule in rules:
        at = {place}
        for child in rule:
            at = {end for begin in at if begin < len(ends[child]) for end in ends[child][begin]}
        positions |= at
    return positions


@register("corpus", "depo")
class Depo(Probe):
    """Probe: source = arrows of a cycle, then nodes; target = the k-th successor of each node (Depo, arXiv 2512.17351).

    The length is k, the depth of reasoning: the source contains `hop` k times. Intermediate nodes are not written, so
    a model must follow all k arrows within its layers. In the paper, k is a single token and each node has its own k.
    """

    class Config(Probe.Config):
        length: Drawn = Field(2, description="maximum number of arrows to follow in train, valid and test")
        longest: Drawn = Field(4, description="maximum number of arrows to follow in longer (must exceed length)")
        fewest: Drawn = Field(3, description="minimum number of nodes in a cycle")
        nodes: Drawn = Field(6, description="maximum number of nodes in a cycle")
        symbols: Drawn = Field(12, description="number of node names")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if not self.fewest <= self.nodes <= self.symbols:
                text = f"cycles of {self.fewest} to {self.nodes} nodes cannot be built from {self.symbols} names; "
                yield Problem("nodes", f"{text}set fewest <= nodes <= symbols")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        config = self.config
        cycle = rng.sample(symbols(config.symbols), rng.randint(config.fewest, config.nodes))
        following = {node: cycle[(place + 1) % len(cycle)] for place, node in enumerate(cycle)}
        arrows = rng.sample(list(following.items()), len(cycle))
        queries = rng.sample(cycle, len(cycle))
        answers = {node: cycle[(place + length) % len(cycle)] for place, node in enumerate(cycle)}
        source = [*(word for arrow in arrows for word in arrow), *["hop"] * length, "?", *queries]
        return source, [word for node in queries for word in (node, answers[node])]


Graph = Mapping[str, Sequence[str]]  # node -> its direct dependencies


@register("corpus", "brevo")
class Brevo(Probe):
    """Probe: source = edges of an acyclic graph and a node; target = the node's dependencies (Brevo, arXiv 2512.17351).

    The target lists the dependencies and the node in topological order, ties broken alphabetically (the paper samples
    one order and accepts all). The length is the number of nodes; isolated nodes do not appear. An edge is written as
    its dependency, then its dependent.
    """

    class Config(Probe.Config):
        shortest: Drawn = Field(2, description="minimum number of nodes in train, valid and test")
        length: Drawn = Field(6, description="maximum number of nodes in train, valid and test")
        longest: Drawn = Field(9, description="maximum number of nodes in longer (must exceed length)")
        degree: Drawn = Field(2, description="maximum number of outgoing, and of incoming, edges of a node")
        symbols: Drawn = Field(16, description="number of node names")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            most = self.longest if self.split == "longer" else self.length
            if self.shortest < 2:
                yield Problem("shortest", "a graph of one node has no edges; use at least 2")
            if most > self.symbols:
                yield Problem("symbols", f"are too few for a graph of {most} nodes")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        graph = self._graph(rng.sample(symbols(self.config.symbols), length), rng)
        edges = [(needed, node) for node, below in graph.items() for needed in below]
        rng.shuffle(edges)
        query = list(graph)[-1]
        return [*(word for edge in edges for word in edge), "?", query], ordered(graph, query)

    def _graph(self, nodes: Sequence[str], rng: random.Random) -> Graph:
        """Draw a DAG: a few roots, then nodes that depend on earlier nodes whose degree is below the limit."""
        most, edges = self.config.degree, dict.fromkeys(nodes, 0)
        graph: dict[str, Sequence[str]] = {}
        roots = rng.randint(1, (len(nodes) - 1) // 4 + 1)
        for place, node in enumerate(nodes):
            free = [one for one in nodes[:place] if edges[one] < most]
            graph[node] = rng.sample(free, rng.randint(1, min(len(free), most))) if place >= roots else ()
            for below in graph[node]:
                edges[below] += 1
        return graph


def ordered(graph: Graph, query: str) -> list[str]:
    """Return `query` and its dependencies in topological order, ties broken alphabetically."""
    needed, closure = {query}, [query]
    for node in closure:
        new = [below for below in graph[node] if below not in needed]
        needed.update(new)
        closure += new
    order: list[str] = []
    while len(order) < len(closure):
        ready = [node for node in closure if node not in order and all(below in order for below in graph[node])]
        order.append(min(ready))
    return order


@register("corpus", "mano")
class Mano(Probe):
    """Probe: source = an expression in prefix notation; target = its value modulo p (Mano, arXiv 2512.17351).

    The length is the number of operations. A model must memorize the tables of + - * and evaluate the expression tree
    without writing intermediate results. The paper uses p = 23, up to 10 to 16 operations, and a token for each number
    of operations.
    """

    class Config(Probe.Config):
        length: Drawn = Field(2, description="maximum number of operations in train, valid and test")
        longest: Drawn = Field(4, description="maximum number of operations in longer (must exceed length)")
        modulus: Drawn = Field(13, description="p")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words, value = self._expression(length, rng)
        return words, [str(value)]

    def _expression(self, operations: int, rng: random.Random) -> tuple[list[str], int]:
        """Draw an expression and its value; the operations are split at random between the two operands."""
        if not operations:
            value = rng.randrange(self.config.modulus)
            return [str(value)], value
        operation, left = rng.choice(("+", "-", "*")), rng.randrange(operations)
        (first, a), (second, b) = self._expression(left, rng), self._expression(operations - 1 - left, rng)
        value = {"+": a + b, "-": a - b, "*": a * b}[operation]
        return [operation, *first, *second], value % self.config.modulus


@register("corpus", "lano")
class Lano(Probe):
    """Probe: source = the start of a sentence of a context-free grammar; target = the rest (Lano, arXiv 2512.17351).

    The length is that of the source. Sentences can be completed in several ways, so the metric is `grammatical`: the
    share of completed sentences that the grammar derives. No sentence is in two splits.
    """

    metric: ClassVar[str] = "grammatical"

    class Config(Probe.Config):
        length: Drawn = Field(4, description="maximum length of the prefix in train, valid and test")
        longest: Drawn = Field(7, description="maximum length of the prefix in longer (must exceed length)")
        depth: Depth = Field(3, description="number of levels of the grammar")
        breadth: Breadth = Field(3, description="number of symbols per level, which is also the number of words")
        rules: Rules = Field(3, description="number of rules per symbol")
        grammar_seed: Seed = Field(1, description="seed of the rules")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            grammar = grammar_of(self)
            most = self.longest if self.split == "longer" else self.length
            if not grammar.possible:
                yield Problem("rules", f"{self.breadth} symbols cannot form that many distinct rules")
            elif most >= grammar.least:
                yield Problem("length", f"must be below {grammar.least}, the minimum length of a sentence")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.grammar = grammar_of(config)

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = self.grammar.sentence(rng)
        return words[:length], words[length:]

    def identity(self, source: str, target: str) -> str:
        return f"{source} {target}"


def grammar_of(config: Lano.Config) -> Grammar:
    """Return the grammar that the options define."""
    return Grammar(config.depth, config.breadth, config.rules, config.grammar_seed)


# attribute -> templates, each followed by the value
SENTENCES = {
    "city": ("was born in", "comes from", "spent her first years in", "calls home the city of"),
    "school": ("studied at", "has a degree from", "finished her studies at", "was a student at"),
    "field": ("majored in", "wrote her thesis on", "is an expert in", "was taught"),
    "company": ("works for", "is employed by", "earns her living at", "found a position at"),
    "month": ("has her birthday in", "was born in the month of", "becomes a year older in", "celebrates in"),
}
WAYS = 4
WAYS_OF = {"train": (0, 1), "valid": (2,), "test": (3,)}  # split -> indices into a fact's shuffled templates


@register("corpus", "capo")
class Capo(Corpus):
    """Biographies as single facts: source = a person and an attribute, target = its value (Capo, arXiv 2512.17351).

    Facts can only be memorized, not inferred. Each fact has four phrasings, assigned to splits at random: two to train,
    one each to valid and test. Phrasings held out for one person are therefore learned from other people.

    The probe measures stored knowledge in bits per parameter: people * 5 * (log2(values) - loss in bits of a value) /
    parameters. A value counts as two targets: itself and the end token.
    """

    fields = ("source", "target")
    example: ClassVar = {"people": 4}

    class Config(Corpus.Config):
        split: Literal["train", "valid", "test"] = Field("train", description="the split")
        people: PositiveInt = Field(200, description="number of people, each with five facts")
        values: Drawn = Field(32, description="number of possible values of each fact")
        seed: Seed = Field(1, description="seed of the facts, which all splits share")

    config: Config

    def count(self) -> int:
        return self.config.people * len(SENTENCES) * len(WAYS_OF[self.config.split])

    def read(self) -> Iterator[Example]:
        rng = random.Random(f"capo {self.config.seed}")
        for name in names(self.config.people):
            for attribute, sentences in SENTENCES.items():
                value = lettered(attribute, rng.randrange(self.config.values))
                ways = rng.sample(sentences, WAYS)
                for way in WAYS_OF[self.config.split]:
                    yield {"source": f"{name} {ways[way]}", "target": value}


def names(people: int) -> Iterator[str]:
    """Yield `people` distinct two-word names, built from shared words."""
    side = 1
    while side * side < people:
        side += 1
    for number in range(people):
        yield f"{lettered('first', number % side)} {lettered('last', number // side)}"
