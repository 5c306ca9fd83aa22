"""Each stop rule: when it ends a text, and what it cuts off."""

from __future__ import annotations

from typing import Any

import pytest

from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.stop import WrittenRow

from ..sampling import looped


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    fitted: Tokenizer = Slot("tokenizer").validate("character").build().fit(["abcdefgh.\n"])
    return fitted


def rules(tokenizer: Tokenizer, *parts: Any) -> Rules:
    return bound_rules([], [Slot("stop").validate(part) for part in parts], tokenizer)


def ends(tokenizer: Tokenizer, part: Any, text: str, seconds: float = 0.0) -> bool:
    return rules(tokenizer, part).done([], tokenizer.encode(text, special=True), seconds)


@looped(
    ("part", "text", "done"),
    [
        ("end_token", "abc</s>", True),
        ("end_token", "abc", False),
        ("end_token", "</s>abc", False),  # only the last token is asked: the ones before were asked in their time
        ({"type": "end_token", "tokens": [".", "\n"]}, "ab.", True),
        ({"type": "end_token", "tokens": [".", "\n"]}, "ab</s>", False),
        ({"type": "end_token", "tokens": "a"}, "a", True),
        ({"type": "length", "tokens": 3}, "ab", False),
        ({"type": "length", "tokens": 3}, "abc", True),
        ({"type": "strings", "strings": "bc"}, "abc", True),
        ({"type": "strings", "strings": ["xy", "c\n"]}, "abc", False),
        ({"type": "strings", "strings": ["xy", "c\n"]}, "abc\n", True),
    ],
)
def test_a_rule_ends_a_text_when_it_says(tokenizer: Tokenizer, part: Any, text: str, done: bool) -> None:
    assert ends(tokenizer, part, text) is done


def test_time(tokenizer: Tokenizer) -> None:
    rule = {"type": "time", "seconds": 1.5}
    assert [ends(tokenizer, rule, "a", seconds) for seconds in (0.0, 1.4, 1.5, 9.0)] == [False, False, True, True]


def test_every_rule_is_tested() -> None:
    assert set(REGISTRY.names("stop")) == {"end_token", "length", "strings", "time"}


def test_what_ends_a_text_is_cut_off(tokenizer: Tokenizer) -> None:
    end = tokenizer.special_ids["end"]
    assert rules(tokenizer, "end_token").cut([5, 6, end]) == [5, 6]
    assert rules(tokenizer, "end_token").cut([5, 6]) == [5, 6]
    assert rules(tokenizer, "end_token").cut([]) == []
    assert rules(tokenizer).cut([5, 6, end]) == [5, 6, end]
    ids = tokenizer.encode("abc.de.f")
    assert rules(tokenizer, {"type": "strings", "strings": ["e.", "c."]}).text([], ids) == "ab"
    assert rules(tokenizer, {"type": "strings", "strings": ["e.", "c."], "keep": True}).text([], ids) == "abc."
    assert rules(tokenizer, {"type": "strings", "strings": ["zz"]}).text([], ids) == "abc.de.f"


def test_a_string_in_the_prompt_ends_nothing(tokenizer: Tokenizer) -> None:
    found = rules(tokenizer, {"type": "strings", "strings": "abc"})
    assert not found.done(tokenizer.encode("abc ab"), tokenizer.encode("c"), 0)
    assert found.text(tokenizer.encode("abc"), tokenizer.encode("dabc")) == "d"


def test_any_of_several_rules_ends_a_text(tokenizer: Tokenizer) -> None:
    several = rules(tokenizer, "end_token", {"type": "length", "tokens": 4}, {"type": "strings", "strings": "b"})
    assert [several.done([], tokenizer.encode(text), 0) for text in ("aaa", "aaaa", "ab")] == [False, True, True]
    assert not rules(tokenizer).done([], tokenizer.encode("aaaa"), 1e9)


def test_texts_are_made_only_when_a_rule_asks() -> None:
    asked: list[int] = []

    def decode(prompt: Any, ids: Any) -> str:
        asked.append(len(ids))
        return "text"

    row = WrittenRow([1], [2, 3], 0.0, decode)
    length = Slot("stop").validate({"type": "length", "tokens": 2}).build()
    assert length.done(row) and not asked
    assert row.text == "text" and row.text == "text" and asked == [2]


def test_a_search_without_a_tokenizer_has_no_texts() -> None:
    rule = Slot("stop").validate({"type": "strings", "strings": "a"}).build()
    with pytest.raises(UsageError, match="this search has no tokenizer"):
        Rules(stop=[rule]).done([1], [2], 0)


def test_a_tokenizer_without_an_end_never_ends_a_text_by_it() -> None:
    plain = Slot("tokenizer").validate({"type": "character", "special_tokens": {"end": None}}).build().fit(["abc"])
    assert not any(rules(plain, "end_token").done([], [token], 0) for token in range(plain.vocab_size))


@looped(
    ("part", "message"),
    [
        ({"type": "strings", "strings": []}, "the list is empty"),
        ({"type": "strings", "strings": [""]}, "at least 1 character"),
        ({"type": "strings", "strings": [3]}, "valid string"),
        ({"type": "time", "seconds": 0}, "greater than 0"),
        ({"type": "length"}, "Field required"),
    ],
)
def test_options_that_mean_nothing_are_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slot("stop").validate(part)


def test_a_rule_that_does_not_fit_the_tokenizer_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"^generate\.stop: end_token: 'zz' is not in the vocabulary"):
        rules(tokenizer, {"type": "end_token", "tokens": ["zz"]})
