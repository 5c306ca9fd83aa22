"""Each logits rule against the plainest way to write it, one row at a time, over rows of unlike length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.logits.base import PADDING, LogitsRule

from ..sampling import looped

LETTERS = "abcdefgh"
# what stands in each row, and how many of the last ones were written
ROWS = [
    ([1, 2, 1, 2, 3, 1, 2], 3),
    ([5], 0),
    ([4, 4, 4, 4], 4),
    ([7, 8, 9, 10, 7, 8], 1),
    ([0, 0], 1),
    ([3, 1, 2, 3, 1], 2),
    ([4, 5, 6, 7, 8, 9, 4, 5, 6, 7], 4),
]
Naive = Callable[[list[float], list[int], list[int]], list[float]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    fitted: Tokenizer = Slot("tokenizer").validate("character").build().fit([LETTERS])
    assert fitted.vocab_size == 12 and fitted.special_ids["end"] == 2
    return fitted


def built(tokenizer: Tokenizer, name: str, **options: Any) -> LogitsRule:
    rule: LogitsRule = Slot("logits").validate({"type": name, **options}).build()
    rule.bind(tokenizer)
    return rule


def batch(rows: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, ids padded on the left, and how many are new."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[PADDING] * (longest - len(ids)) + ids for ids, _ in rows])
    logits = torch.randn(len(rows), 12, generator=torch.Generator().manual_seed(1))
    return logits, ids, torch.tensor([new for _, new in rows])


def naive_repetition(penalty: float, prompt: bool) -> Naive:
    def rule(logits: list[float], ids: list[int], written: list[int]) -> list[float]:
        said = set(ids if prompt else written)
        return [
            (value / penalty if value > 0 else value * penalty) if token in said else value
            for token, value in enumerate(logits)
        ]

    return rule


def naive_price(presence: float, frequency: float, prompt: bool) -> Naive:
    def rule(logits: list[float], ids: list[int], written: list[int]) -> list[float]:
        said = ids if prompt else written
        counts = [said.count(token) for token in range(len(logits))]
        return [value - presence * (count > 0) - frequency * count for value, count in zip(logits, counts, strict=True)]

    return rule


def naive_ngrams(size: int, prompt: bool) -> Naive:
    def rule(logits: list[float], ids: list[int], written: list[int]) -> list[float]:
        text = ids if prompt else written
        seen = {tuple(text[start : start + size]) for start in range(len(text) - size + 1)}
        begun = text[len(text) - size + 1 :]
        ends = [(*begun, token) in seen and len(begun) == size - 1 for token in range(len(logits))]
        return [-math.inf if end else value for end, value in zip(ends, logits, strict=True)]

    return rule


def naive_hidden(hidden: Callable[[int, int], bool]) -> Naive:
    def rule(logits: list[float], ids: list[int], written: list[int]) -> list[float]:
        return [-math.inf if hidden(token, len(written)) else value for token, value in enumerate(logits)]

    return rule


def naive_forced(*first: int) -> Naive:
    def rule(logits: list[float], ids: list[int], written: list[int]) -> list[float]:
        if len(written) >= len(first):
            return logits
        return [0.0 if token == first[len(written)] else -math.inf for token in range(len(logits))]

    return rule


CASES: list[tuple[str, dict[str, Any], Naive]] = [
    ("repetition_penalty", {"penalty": 1.7}, naive_repetition(1.7, True)),
    ("repetition_penalty", {"penalty": 0.5, "prompt": False}, naive_repetition(0.5, False)),
    ("presence_penalty", {"penalty": 0.6}, naive_price(0.6, 0, False)),
    ("presence_penalty", {"penalty": -0.6, "prompt": True}, naive_price(-0.6, 0, True)),
    ("frequency_penalty", {"penalty": 0.3}, naive_price(0, 0.3, False)),
    ("frequency_penalty", {"penalty": 0.3, "prompt": True}, naive_price(0, 0.3, True)),
    *[("no_repeat_ngram", {"size": size}, naive_ngrams(size, True)) for size in (1, 2, 3, 5)],
    *[("no_repeat_ngram", {"size": size, "prompt": False}, naive_ngrams(size, False)) for size in (1, 2, 3)],
    ("banned", {"tokens": ["a", 7, "</s>"]}, naive_hidden(lambda token, _: token in (4, 7, 2))),
    ("banned", {"tokens": "b"}, naive_hidden(lambda token, _: token == 5)),
    ("forced", {"tokens": ["h", 3]}, naive_forced(11, 3)),
    ("min_length", {"tokens": 2}, naive_hidden(lambda token, new: new < 2 and token == 2)),
    ("min_length", {"tokens": 4, "ends": ["a", "b"]}, naive_hidden(lambda token, new: new < 4 and token in (4, 5))),
]


def test_every_rule_is_tested() -> None:
    sampling = {name for name in REGISTRY.names("logits") if REGISTRY.get("logits", name).of_sampling}  # type: ignore[attr-defined]
    elsewhere = sampling | {"choices", "regex"}  # test_sampling_rules.py, test_constraints.py
    assert {name for name, _, _ in CASES} == set(REGISTRY.names("logits")) - elsewhere


@looped(("name", "options", "naive"), CASES)
def test_a_rule_does_what_it_says_to_each_row_alone(
    tokenizer: Tokenizer, name: str, options: dict[str, Any], naive: Naive
) -> None:
    rule = built(tokenizer, name, **options)
    logits, ids, new = batch(ROWS)
    before = logits.clone(), ids.clone()
    out = rule.forward(logits, ids, new)
    for row, (text, count) in enumerate(ROWS):
        expected = torch.tensor(naive(logits[row].tolist(), text, text[len(text) - count :]))
        torch.testing.assert_close(out[row], expected)
        alone = rule.forward(logits[row : row + 1], torch.tensor([text]), new[row : row + 1])
        torch.testing.assert_close(out[row], alone[0], rtol=0, atol=0)
    assert torch.equal(logits, before[0]) and torch.equal(ids, before[1])
    assert not torch.equal(out, logits)  # the rows are such that every rule has something to do


@looped(
    ("name", "options", "message"),
    [
        ("banned", {"tokens": ["z"]}, "'z' is not in the vocabulary of 12 tokens$"),
        ("banned", {"tokens": "ab"}, "'ab' is not in the vocabulary of 12 tokens; it is encoded as 2 tokens: 'a', 'b'"),
        ("forced", {"tokens": [12]}, "no token has id 12; ids are 0 to 11"),
        ("min_length", {"tokens": 1, "ends": ["<nothing>"]}, "'<nothing>' is not in the vocabulary"),
    ],
)
def test_tokens_that_are_not_there_are_refused(
    tokenizer: Tokenizer, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        built(tokenizer, name, **options)


def test_there_must_be_an_end_to_hold_back() -> None:
    endless = Slot("tokenizer").validate({"type": "character", "special_tokens": {"end": None}}).build().fit([LETTERS])
    with pytest.raises(UsageError, match="no end token; list the end tokens in `ends`"):
        built(endless, "min_length", tokens=3)
    built(endless, "min_length", tokens=3, ends="h")


@looped(
    ("part", "message"),
    [
        ({"type": "banned", "tokens": []}, "the list is empty"),
        ({"type": "banned", "tokens": [""]}, "at least 1 character"),
        ({"type": "banned", "tokens": [-1]}, "greater than or equal to 0"),
        ({"type": "banned", "tokens": [True]}, "valid integer"),
        ({"type": "repetition_penalty", "penalty": 0}, "greater than 0"),
        ({"type": "no_repeat_ngram", "size": 0}, "greater than or equal to 1"),
        ({"type": "presence_penalty"}, "Field required"),
        ({"type": "presence_penalty", "penalty": math.inf}, "finite"),
    ],
)
def test_options_that_mean_nothing_are_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slot("logits").validate(part)
