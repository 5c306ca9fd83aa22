"""Probes: each target is what the source asks for, splits share no source, and `longer` is longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Probe

PROBES = [name for name in REGISTRY.names("corpus") if issubclass(REGISTRY.get("corpus", name), Probe)]


def pairs(name: str, **options: Any) -> list[tuple[list[str], list[str]]]:
    config = REGISTRY.get("corpus", name).Config.model_validate({"count": 60, **options})
    return [(one["source"].split(), one["target"].split()) for one in config.build().examples()]


@pytest.mark.parametrize("name", PROBES)
def test_every_word_is_a_token(name: str) -> None:
    config = REGISTRY.get("corpus", name).Config.model_validate({"count": 60})
    texts = [text for one in config.build().examples() for text in one.values()]
    tokenizer = REGISTRY.get("tokenizer", "word").Config().build().fit(texts)
    assert all(len(tokenizer.encode(text)) == len(text.split()) for text in texts)
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts)


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


RIGHT: dict[str, Callable[[list[str]], list[str]]] = {
    "copying": lambda source: source,
    "reversal": lambda source: source[::-1],
    "sorting": lambda source: sorted(source, key=int),
    "parity": lambda source: ["odd" if source.count("1") % 2 else "even"],
    "modular_addition": added,
    "associative_recall": recalled,
    "brackets": closing,
    "induction": lambda source: [source[source.index(source[-1]) + 1]],
}


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("split", ["train", "longer"])
def test_the_target_is_what_is_asked(name: str, split: str) -> None:
    found = pairs(name, split=split)
    assert len(found) == 60
    assert all(target == RIGHT[name](source) for source, target in found)


def test_there_is_a_reference_for_each() -> None:
    assert set(PROBES) == set(RIGHT)


@pytest.mark.parametrize("name", PROBES)
def test_splits_share_no_source_whatever_the_seed(name: str) -> None:
    sources = {
        (split, seed): {" ".join(source) for source, _ in pairs(name, split=split, seed=seed, count=150)}
        for split in ("train", "valid", "test")
        for seed in (1, 2)
    }
    assert all(len(found) == 150 for found in sources.values())
    for (one, _), ours in sources.items():
        for (other, _), theirs in sources.items():
            assert one == other or not ours & theirs
    assert sources["train", 1] != sources["train", 2]


@pytest.mark.parametrize("name", PROBES)
def test_longer_begins_after_the_lengths_of_training(name: str) -> None:
    most = max(len(source) for source, _ in pairs(name))
    longer = [len(source) for source, _ in pairs(name, split="longer")]
    assert min(longer) > (most if name != "brackets" else 12)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "parity",
            {"length": 3, "count": 100},
            r"'parity': train has only \d+ different pairs with these options, not 100",
        ),
        (
            "modular_addition",
            {"split": "test", "count": 5_000},
            r"test has only \d+ different pairs .*; say count: \d+",
        ),
        ("copying", {"split": "longer", "longest": 12}, r"longer has lengths from 13 to 12, which is none"),
        ("copying", {"shortest": 9, "length": 8}, r"train has lengths from 9 to 8, which is none"),
    ],
)
def test_what_cannot_be_drawn_is_told(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pairs(name, **options)
