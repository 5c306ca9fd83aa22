"""Probes: each target is what the source asks for, splits share no source, and `longer` is longer."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sampling import each, looped
from tfkit.core.errors import DataError, RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Probe
from tfkit.data.corpus.reasoning import Grammar
from tfkit.recipe.load import load_recipe

PROBES = [name for name in REGISTRY.names("corpus") if issubclass(REGISTRY.get("corpus", name), Probe)]


def examples(name: str, **options: Any) -> list[dict[str, str]]:
    count = {} if name == "capo" else {"count": 60}
    config = REGISTRY.get("corpus", name).Config.model_validate({**count, **options})
    found: list[dict[str, str]] = config.build().examples()
    return found


def pairs(name: str, **options: Any) -> list[tuple[list[str], list[str]]]:
    return [(one["source"].split(), one["target"].split()) for one in examples(name, **options)]


def recalled(source: list[str]) -> list[str]:
    middle = source.index("?")
    known = dict(zip(source[:middle:2], source[1:middle:2], strict=True))
    return [word for key in source[middle + 1 :] for word in (key, known[key])]


def closing(source: list[str]) -> list[str]:
    """The stack by hand: what is open, the last first; raises where one closes what is not open."""
    stack: list[str] = []
    for word in source:
        if word.startswith("open"):
            stack.append(word.removeprefix("open"))
        else:
            assert stack.pop() == word.removeprefix("close")
    return [f"close{kind}" for kind in reversed(stack)] or ["done"]


def added(source: list[str]) -> list[str]:
    assert source[1::2] == ["+"] * (len(source) // 2)
    return [str(sum(map(int, source[::2])) % 59)]


def followed(source: list[str]) -> list[str]:
    assert len(set(source)) == len(source) - 1
    place = source.index(source[-1]) + 1
    return source[place : place + 4]


def hopped(source: list[str]) -> list[str]:
    """One arrow after another, as often as `hop` is said."""
    middle, hops = source.index("?"), source.count("hop")
    arrows = dict(zip(source[: middle - hops : 2], source[1 : middle - hops : 2], strict=True))
    answer = []
    for node in source[middle + 1 :]:
        reached = node
        for _ in range(hops):
            reached = arrows[reached]
        answer += [node, reached]
    return answer


def depended(source: list[str]) -> list[str]:
    """The first order of the alphabet, of all orders, in which every edge's needed node comes before its other one."""
    edges = list(zip(source[:-2:2], source[1:-2:2], strict=True))
    below, before = {source[-1]}, set[str]()
    while below != before:
        before = set(below)
        below |= {needed for needed, node in edges if node in below}
    inner = [(needed, node) for needed, node in edges if node in below]
    orders = (
        order
        for order in permutations(sorted(below))
        if all(order.index(needed) < order.index(node) for needed, node in inner)
    )
    return list(next(orders))


def computed(source: list[str]) -> list[str]:
    """The prefix notation read from its end, with a stack."""
    stack: list[int] = []
    for word in reversed(source):
        if word.isdigit():
            stack.append(int(word))
        else:
            a, b = stack.pop(), stack.pop()
            stack.append(a + b if word == "+" else a - b if word == "-" else a * b)
    assert len(stack) == 1
    return [str(stack[0] % 13)]


RIGHT: dict[str, Callable[[list[str]], list[str]]] = {
    "copying": lambda source: source,
    "reversal": lambda source: source[::-1],
    "sorting": lambda source: sorted(source, key=int),
    "parity": lambda source: ["odd" if source.count("1") % 2 else "even"],
    "modular_addition": added,
    "associative_recall": recalled,
    "brackets": closing,
    "induction": followed,
    "depo": hopped,
    "brevo": depended,
    "mano": computed,
}


def test_the_target_is_what_is_asked() -> None:
    def check(name: str, split: str) -> None:
        found = pairs(name, split=split, **({"longest": 7} if name == "brevo" else {}))
        assert len(found) == 60
        assert all(target == RIGHT[name](source) for source, target in found)

    assert set(PROBES) == {*RIGHT, "lano"}
    each(product(RIGHT, ["train", "longer"]), check)


def test_running_parity_tells_each_bit() -> None:
    for source, target in pairs("parity", running=True):
        assert target == ["odd" if source[: place + 1].count("1") % 2 else "even" for place in range(len(source))]


def wholes(name: str, split: str, seed: int) -> set[str]:
    options = {"split": split, "seed": seed, "count": 80}
    corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    return {corpus.identity(one["source"], one["target"]) for one in corpus.examples()}


def test_splits_share_no_source_whatever_the_seed() -> None:
    def check(name: str) -> None:
        sources = {(split, seed): wholes(name, split, seed) for split in ("train", "valid", "test") for seed in (1, 2)}
        assert all(len(found) == 80 for found in sources.values())
        for (one, _), ours in sources.items():
            for (other, _), theirs in sources.items():
                assert one == other or not ours & theirs
        assert sources["train", 1] != sources["train", 2]
        assert sources["train", 1] == wholes(name, "train", 1)

    each(PROBES, check)


def test_longer_begins_after_the_lengths_of_training() -> None:
    def check(name: str) -> None:
        most = max(int(one["length"]) for one in examples(name))
        longer = [int(one["length"]) for one in examples(name, split="longer")]
        assert min(longer) == most + 1 == REGISTRY.get("corpus", name).Config().length + 1

    each(PROBES, check)


LENGTH: dict[str, Callable[[list[str]], int]] = {
    **dict.fromkeys(("copying", "reversal", "sorting", "parity", "brackets", "lano"), len),
    "modular_addition": lambda source: source.count("+") + 1,
    "associative_recall": lambda source: source.index("?") // 2,
    "induction": lambda source: len(source) - 1,
    "depo": lambda source: source.count("hop"),
    "mano": lambda source: sum(not word.isdigit() for word in source),
}


def test_the_length_is_what_the_probe_says() -> None:
    def check(name: str, split: str) -> None:
        for one in examples(name, split=split):
            words = one["source"].split()
            if name == "brevo":  # a node without an edge is not seen
                assert int(one["length"]) >= len({*words} - {"?"})
            else:
                assert int(one["length"]) == LENGTH[name](words)

    each(product(PROBES, ["test", "longer"]), check)


def written(grammar: Grammar, level: int, symbol: int) -> set[tuple[str, ...]]:
    """All that a symbol can become, by writing it out."""
    if level == grammar.depth:
        return {(f"n{'abc'[symbol]}",)}
    found: set[tuple[str, ...]] = set()
    for rule in grammar.levels[level][symbol]:
        texts: set[tuple[str, ...]] = {()}
        for child in rule:
            texts = {(*text, *more) for text in texts for more in written(grammar, level + 1, child)}
        found |= texts
    return found


def test_a_grammar_derives_its_sentences_and_no_other() -> None:
    grammar = Grammar(2, 3, 2, 1)
    right = written(grammar, 0, 0)
    assert 8 < len(right) < 100
    for size in range(1, 8):
        for number in range(3**size):
            words = tuple(f"n{'abc'[number // 3**place % 3]}" for place in range(size))
            assert grammar.derives(words) == (words in right)
    assert not grammar.derives([]) and not grammar.derives(["other"])


def test_lano_is_made_of_sentences() -> None:
    corpus = REGISTRY.get("corpus", "lano").Config.model_validate({"count": 60, "grammar_seed": 5}).build()
    grammar, other = Grammar(3, 3, 3, 5), Grammar(3, 3, 3, 1)
    sentences = [one["source"].split() + one["target"].split() for one in corpus.examples()]
    assert all(grammar.derives(sentence) for sentence in sentences)
    assert not any(grammar.derives([*sentence, "na"] * 2) for sentence in sentences)
    assert sum(other.derives(sentence) for sentence in sentences) < 10


def test_capo_tells_each_fact_in_other_words_in_each_split() -> None:
    splits = {split: examples("capo", split=split, people=30) for split in ("train", "valid", "test")}
    assert [len(found) for found in splits.values()] == [300, 150, 150]
    sources = {split: {one["source"] for one in found} for split, found in splits.items()}
    assert len(set.union(*sources.values())) == 600, "no sentence comes twice"
    facts = {split: {(*one["source"].split()[:2], one["target"]) for one in found} for split, found in splits.items()}
    assert facts["train"] == facts["valid"] == facts["test"] and len(facts["test"]) == 150
    ways = {split: {tuple(source.split()[2:]) for source in found} for split, found in sources.items()}
    assert ways["test"] <= ways["train"], "every way to say it is learned"
    assert examples("capo", people=30, seed=2) != splits["train"]


@pytest.mark.full
@looped(
    ("name", "options", "message"),
    [
        (
            "parity",
            {"length": 3, "count": 100},
            r"'parity': train has only \d+ distinct pairs with these options, not 100",
        ),
        ("modular_addition", {"split": "test", "count": 5_000}, r"test has only \d+ distinct pairs .*; set count: \d+"),
        ("copying", {"split": "longer", "longest": 12}, r"longer: lengths 13 to 12 are an empty range"),
        ("copying", {"shortest": 9, "length": 8}, r"train: lengths 9 to 8 are an empty range"),
    ],
)
def test_what_cannot_be_drawn_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pairs(name, **options)


@looped(
    ("corpus", "place", "message"),
    [
        ({"type": "depo", "nodes": 20}, "nodes", "cycles of 3 to 20 nodes cannot be built from 12 names"),
        ({"type": "depo", "fewest": 9}, "nodes", "cycles of 9 to 6 nodes"),
        ({"type": "brevo", "shortest": 1}, "shortest", "a graph of one node has no edges; use at least 2"),
        ({"type": "brevo", "length": 17}, "symbols", "are too few for a graph of 17 nodes"),
        ({"type": "induction", "shortest": 4}, "shortest", "following 4 needs sequences of at least 5 symbols"),
        ({"type": "induction", "symbols": 8}, "symbols", "are too few for a sequence of 16 distinct symbols"),
        ({"type": "lano", "rules": 20}, "rules", "3 symbols cannot form that many distinct rules"),
        ({"type": "lano", "length": 8}, "length", "must be below 8, the minimum length of a sentence"),
        ({"type": "capo", "split": "longer"}, "split", ".*train.*valid.*test"),
    ],
)
def test_options_that_make_no_examples_are_refused_at_their_place(
    corpus: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=rf"data\.train\.{place}: {message}"):
        load_recipe("names", overrides={"data.train": corpus, "data.valid": None, "objective": "completion"})


@pytest.mark.full
def test_the_studies_measure_only_probes_that_are_solved() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    section = (folder / "tasks" / "README.md").read_text(encoding="utf-8").partition("\n## Probes\n")[2]
    solved = re.findall(r"(?m)^\| (\w[\w ]*) \| .* \| ([\d.]+) \| [\d.]+ \|", section.partition("do not solve")[0])
    assert len(solved) == 7 and all(float(score) > 95 for _, score in solved)
    names = {name.replace(" ", "_") for name, _ in solved}
    measured = set()
    for file in sorted((folder / "studies").glob("*.yaml")):
        for measure in yaml.safe_load(file.read_text(encoding="utf-8")).get("study", {}).get("measure", ()):
            probe = measure.get("probe") if isinstance(measure, dict) else None
            measured |= {probe["type"] if isinstance(probe, dict) else probe} - {None}
    assert measured <= names
