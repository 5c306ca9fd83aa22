"""Texts that must be one of some, or match a pattern: with every kind of tokenizer, strategy and prompt."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models

import tfkit
from tfkit.contracts.training import small_model
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint.automaton import START, automaton_of
from tfkit.generation.constraint.guide import Guide, State
from tfkit.generation.constraint.token_texts import token_texts
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import prepare
from tfkit.generation.texts import find

from ..sampling import looped, some, some_rows

LINES = ["the cat sees a small house, isn't it?", "Ünïcödé ßtraße 漢字 🙂 two  spaces", "a dog: yes! 123 4567"] * 5
KINDS: dict[str, Any] = {
    "character": "character",
    "word": "word",
    "bpe": {"type": "bpe", "vocab_size": 200},
    "byte_level": {"type": "bpe", "vocab_size": 400, "byte_level": True},
    "wordpiece": {"type": "wordpiece", "vocab_size": 200},
    "unigram": {"type": "unigram", "vocab_size": 330, "byte_fallback": True},
    "byte_fallback": None,
}
STRATEGIES: list[Any] = ["greedy", {"type": "sample", "n_best": 2}, {"type": "beam", "num_beams": 3, "n_best": 3}]


def falling_back() -> Tokenizer:
    """Pieces with a mark for the space, and bytes for what there is no piece of, as in Llama."""
    tokens = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁a", "cat", "▁cat", "é", "é▁x"]
    backend = tokenizers.Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, {"start": "<s>", "end": "</s>"})


def made(kind: str) -> Tokenizer:
    if kind not in TOKENIZERS:
        part = KINDS[kind]
        TOKENIZERS[kind] = Slot("tokenizer").validate(part).build().fit(LINES) if part else falling_back()
    return TOKENIZERS[kind]


TOKENIZERS: dict[str, Tokenizer] = {}


def bound(tokenizer: Tokenizer, *parts: Any, stop: Sequence[Any] = ("end_token",)) -> Rules:
    return bound_rules(
        [Slot("logits").validate(part) for part in parts], [Slot("stop").validate(part) for part in stop], tokenizer
    )


def written(
    tokenizer: Tokenizer, rules: Rules, strategy: Any = "greedy", room: int = 40, pair: bool = False
) -> list[str]:
    """What a small model that was never trained writes after prompts of unlike length."""
    model = small_model("encoder_decoder" if pair else "causal", "language_model", tokenizer.vocab_size)
    read = [tokenizer.encode("a", special=False)[-1:], tokenizer.encode("a small cat"), tokenizer.encode("the house")]
    start = [[tokenizer.special_ids["start"]]] * len(read)
    search = prepare(model, start if pair else read, room, rules, sources=read if pair else None, seed=3, scored=True)
    found = find(Slot("strategy").validate(strategy).build(), search)
    return [
        rules.text(prompt, candidate.ids)
        for prompt, candidates in zip(search.prompts, found, strict=True)
        for candidate in candidates
    ]


# --- what tokens write


@looped("kind", KINDS)
def test_the_texts_of_tokens_are_those_that_decode_gives(kind: str) -> None:
    tokenizer, chance = made(kind), random.Random(4)
    texts = token_texts(tokenizer)
    compared = 0
    for _ in range(300):
        ids = [chance.randrange(tokenizer.vocab_size) for _ in range(chance.randint(1, 6))]
        data, first = b"", True
        for id_ in ids:
            data += (texts.first if first else texts.inner)[id_]
            first = first and not texts.inner[id_]
        try:
            expected = data.decode()
        except UnicodeDecodeError:
            continue
        compared += 1
        assert tokenizer.decode(ids) == expected, [tokenizer.token(id_) for id_ in ids]
    assert compared > 50 or kind == "byte_fallback"


def test_special_tokens_write_nothing() -> None:
    for kind in KINDS:
        texts = token_texts(made(kind))
        assert not any(texts.inner[id_] or texts.first[id_] for id_ in made(kind).special_ids.values())


def test_a_tokenizer_that_looks_ahead_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a</w>": 0, "b</w>": 1, "</s>": 2}, []))
    backend.decoder = decoders.BPEDecoder("</w>")
    with pytest.raises(
        UsageError, match=r"regex: constraints do not work with this tokenizer: with BPEDecoder, a token"
    ):
        bound(Tokenizer(backend, {"end": "</s>"}), {"type": "regex", "pattern": "a"})


# --- texts that match

PATTERNS = {
    "character": [r" ?\d{2,4}", r"(the|a) [a-z]+\.?", r"[^a]+"],
    "word": [r"( the)+ (cat|dog)", r" ?\w+", r"the|( a)? small"],
    "bpe": [r" ?\d{2,4}", r"(the|a) [a-z]+", r"é|[Üß]*x?"],
    "byte_level": [r" ?\d{2,4}", r"漢?[字-孙]\U0001F642", r"[^a]{2,}", r"[ä-ü]{1,3}"],
    "wordpiece": [r" ?\d+ \w+", r"the (cat|dog)|( the)+ small", r" ?[a-z]{1,3}"],
    "unigram": [r" ?\d{2,4}", r"(the|a) [a-z]+", r"漢?[字-孙]\U0001F642"],
    "byte_fallback": [r" ?\d{2,4}", r"[𝒜-𝒟漢é]+( x)?", r" ?the cat"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_matches(kind: str) -> None:
    """Any allowed token at every step: no dead end, and at the end a match."""
    tokenizer, chance = made(kind), random.Random(1)
    end = tokenizer.special_ids["end"]
    visible = next(id_ for id_, text in enumerate(token_texts(tokenizer).inner) if text.isalpha())
    complete = 0
    for pattern in PATTERNS[kind]:
        guide = Guide(automaton_of(pattern), tokenizer, {end})
        for prompt in ([], [visible]):
            first = not prompt
            for _ in range(20 if guide.can_begin(first) else 0):
                ids: list[int] = []
                while len(ids) < 60 and ids[-1:] != [end]:
                    allowed = guide.allowed(guide.state(first, ids)).nonzero()[:, 0].tolist()
                    assert allowed, (pattern, ids)
                    ids.append(end if end in allowed and chance.random() < 0.3 else chance.choice(allowed))
                if ids[-1] == end:
                    complete += 1
                    text = tokenizer.decode([*prompt, *ids])[len(tokenizer.decode(prompt)) :]
                    assert re.fullmatch(pattern, text), (pattern, text)
    assert complete > 40


def spelled(texts: Sequence[bytes], rest: bytes) -> bool:
    """Whether some tokens after one another write `rest`."""
    return not rest or any(spelled(texts, rest[len(text) :]) for text in texts if text and rest.startswith(text))


@pytest.mark.parametrize("kind", ["character", "word", "bpe", "wordpiece", "byte_level", "byte_fallback"])
def test_exactly_the_tokens_that_lead_on_are_allowed(kind: str) -> None:
    tokenizer = made(kind)
    end, texts = tokenizer.special_ids["end"], token_texts(tokenizer)
    inner, first = (sorted({text for text in some if text}) for some in (texts.inner, texts.first))
    choices = ["the cat", "the", " the small", "cat's", " a", " cat", "é 🙂", " the cat dog"]
    choices = [
        choice
        for choice in choices
        if any(spelled(inner, choice.encode()[len(t) :]) for t in (b"", *first) if choice.encode().startswith(t))
    ]
    guide = Guide(automaton_of("|".join(map(re.escape, choices))), tokenizer, {end})
    states: list[tuple[bytes, State]] = [(b"", State(START, first=begins)) for begins in (True, False)]
    for done, state in islice(states, 400):  # which grows meanwhile
        allowed = set(guide.allowed(state).nonzero()[:, 0].tolist())
        expected = {end} if done.decode(errors="replace") in choices and not state.partial else set()
        for id_, text in enumerate(texts.first if state.first else texts.inner):
            wanted = [choice.encode() for choice in choices if choice.encode().startswith(done + text)]
            if text and any(spelled(inner, choice[len(done + text) :]) for choice in wanted):
                expected.add(id_)
                states.append((done + text, guide.step(state, id_)))
        assert allowed == expected, done
    assert len(states) > 5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize(("kind", "pair"), [("character", False), ("byte_level", True), ("bpe", True)])
def test_every_strategy_writes_matches(strategy: Any, kind: str, pair: bool) -> None:
    pattern = r" ?\d{1,3}(, \d){0,9};" if kind == "character" else r" ?[Tt]he (small )?(cat|dog)é?"
    tokenizer = made(kind) if kind != "character" else Slot("tokenizer").validate(kind).build().fit(["0123456789,; a"])
    rules = bound(tokenizer, {"type": "regex", "pattern": pattern}, {"type": "no_repeat_ngram", "size": 30})
    texts = written(tokenizer, rules, strategy, pair=pair)
    assert texts and all(re.fullmatch(pattern, text) for text in texts), texts
    assert texts != written(tokenizer, bound(tokenizer), strategy, pair=pair)


def test_rules_of_sampling_draw_from_what_is_left() -> None:
    tokenizer = made("character")
    rules = bound(
        tokenizer,
        {"type": "regex", "pattern": r"\d(\d\d){0,9}"},
        {"type": "temperature", "temperature": 3.0},
        {"type": "top_k", "k": 2},
    )
    texts = written(tokenizer, rules, {"type": "sample", "n_best": 5})
    assert all(re.fullmatch(r"\d(\d\d){0,9}", text) for text in texts) and len(set(texts)) > 3


# --- choices


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_each_output_is_one_of_the_choices(strategy: Any) -> None:
    tokenizer, choices = made("byte_level"), ["new", "new house", " the 🙂", "(a|b)*"]
    rules = bound(tokenizer, {"type": "choices", "choices": choices})
    assert set(written(tokenizer, rules, strategy)) <= set(choices)


def test_one_choice_may_be_the_beginning_of_another() -> None:
    tokenizer = made("character")
    guide = Guide(automaton_of("cat|cats"), tokenizer, {2})
    after = guide.state(False, tokenizer.encode("cat"))
    assert set(guide.allowed(after).nonzero()[:, 0].tolist()) == {2, tokenizer.id("s")}
    assert guide.allowed(guide.state(False, tokenizer.encode("cats"))).nonzero()[:, 0].tolist() == [2]


def test_without_an_end_token_a_text_stops_when_it_is_complete() -> None:
    part: Any = {"type": "character", "special_tokens": {"end": None}}
    endless = Slot("tokenizer").validate(part).build().fit(LINES)
    rules = bound(endless, {"type": "choices", "choices": ["cat", "house"]}, stop=[])
    assert set(written(endless, rules)) <= {"cat", "house"}
    rules = bound(endless, {"type": "choices", "choices": ["the", "the "], "ends": "?"}, stop=[])
    assert set(written(endless, rules)) <= {"the?", "the ?"}  # an end that is a text of its own, cut off by no rule
    for part in ({"type": "choices", "choices": ["cat", "cat s"]}, {"type": "regex", "pattern": "a+"}):
        with pytest.raises(
            UsageError, match="may be the beginning of a longer one, but the tokenizer has no end token"
        ):
            bound(endless, part, stop=[])


# --- no more tokens than there is room for


def fewest(texts: Sequence[bytes], rest: bytes) -> int:
    """The fewest of some tokens that write `rest` after one another."""
    ways = [0, *[10**6] * len(rest)]
    for end in range(1, len(rest) + 1):
        ways[end] = min([ways[end], *(ways[end - len(t)] + 1 for t in texts if t and rest[:end].endswith(t))])
    return ways[-1]


@pytest.mark.parametrize("kind", some(["byte_level", "word", "bpe", "character", "wordpiece", "byte_fallback"]))
def test_exactly_the_tokens_that_lead_to_an_end_in_time_are_allowed(kind: str) -> None:
    tokenizer = made(kind)
    texts = token_texts(tokenizer)
    inner = sorted({text for text in texts.inner if text})
    choices = [
        choice for choice in (" the small cat", " the", " a dog", " cat é漢🙂") if spelled(inner, choice.encode())
    ]
    guide = Guide(automaton_of("|".join(map(re.escape, choices))), tokenizer, {tokenizer.special_ids["end"]})
    states = [(b"", State(START))]
    for done, state in islice(states, 60):  # which grows meanwhile
        rest = [choice.encode()[len(done) :] for choice in choices if choice.encode().startswith(done)]
        for left in (1, 2, 3, 5, 8, 13):
            found = set(guide.in_time(state, left).nonzero()[:, 0].tolist()) - set(guide.ends)
            expected = {
                id_
                for id_, text in enumerate(texts.inner)
                if text and any(one.startswith(text) and fewest(inner, one[len(text) :]) < left for one in rest)
            }
            # a token of some characters and a part of another may be quicker than its bytes, which are counted
            assert found == expected or (guide.pieces[False].by_bytes and found < expected), (done, left)
        allowed = guide.allowed(state).nonzero()[:, 0].tolist()
        states += [(done + texts.inner[id_], guide.step(state, id_)) for id_ in allowed if texts.inner[id_]]
        assert guide.needs(state) >= min(fewest(inner, one) for one in rest)
    assert len(states) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_within_its_room_matches(kind: str) -> None:
    """In as many tokens as the shortest match takes, and in more."""
    tokenizer, chance = made(kind), random.Random(2)
    end = tokenizer.special_ids["end"]
    complete = 0
    for pattern in PATTERNS[kind]:
        guide = Guide(automaton_of(pattern), tokenizer, {end})
        for first in (True, False):
            needs = guide.needs(State(START, first=first))
            for room in [needs, needs, needs + 1, needs + 2, needs + 5] * (4 if guide.can_begin(first) else 0):
                ids: list[int] = []
                while len(ids) < room and ids[-1:] != [end]:
                    allowed = guide.in_time(guide.state(first, ids), room - len(ids)).nonzero()[:, 0].tolist()
                    assert allowed, (pattern, room, ids)
                    ids.append(chance.choice(allowed))
                assert guide.complete(guide.state(first, ids)), (pattern, room, ids)
                complete += 1
            assert not needs or not guide.in_time(State(START, first=first), needs - 1).any()
    assert complete > 40


ALL: list[Any] = [
    *STRATEGIES, {"type": "speculative"}, {"type": "contrastive", "k": 3}, {"type": "diverse_beam", "n_best": 4},
]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "pair"), some_rows((strategy, pair) for pair in (False, True) for strategy in ALL)
)
def test_a_text_is_whole_however_little_room_there_is(strategy: Any, pair: bool) -> None:
    tokenizer, pattern = made("byte_level"), r" ?([Tt]he (small )*(cat|dog)s?)+é"
    for stop in ((), ({"type": "length", "tokens": 12},)):
        rules = bound(tokenizer, {"type": "regex", "pattern": pattern}, stop=["end_token", *stop])
        for room in (12,) if stop else (9, 10, 14):
            texts = written(tokenizer, rules, strategy, room=room + len(stop), pair=pair)
            assert texts and all(re.fullmatch(pattern, text) for text in texts), texts


def test_too_little_room_for_any_text_is_refused_before_anything_is_computed() -> None:
    tokenizer = made("character")
    rules = bound(tokenizer, {"type": "regex", "pattern": r"\d{4}:\d"})
    with pytest.raises(UsageError, match="regex: the shortest allowed text takes 6 tokens, but the limit is 5"):
        written(tokenizer, rules, room=5)
    short = bound(tokenizer, {"type": "choices", "choices": ["house", "cat"]}, stop=[{"type": "length", "tokens": 2}])
    with pytest.raises(UsageError, match="choices: the shortest allowed text takes 3 tokens, but the limit is 2"):
        written(tokenizer, short)
    assert set(written(tokenizer, bound(tokenizer, {"type": "choices", "choices": ["house", "cat"]}), room=4)) == {
        "cat"
    }


def test_a_text_that_something_else_ends_is_not_whole() -> None:
    tokenizer = made("character")
    rules = bound(tokenizer, {"type": "choices", "choices": "the cat"}, stop=[{"type": "strings", "strings": "c"}])
    ids = tokenizer.encode("the cat")
    assert rules.complete([], ids) and not rules.complete([], ids[:5]) and not rules.complete([], [])
    assert not rules.complete([], [*ids, ids[0]])
    assert bound(tokenizer).complete([], [])


# --- states


def test_a_step_costs_one_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made("character")
    guide = Guide(automaton_of("[a-z ]*"), tokenizer, {2})
    step, steps = guide.step, []

    def counted(state: State, id_: int) -> State:
        steps.append(id_)
        return step(state, id_)

    monkeypatch.setattr(guide, "step", counted)
    ids = tokenizer.encode("the small cat")
    for length in range(len(ids) + 1):
        guide.state(False, ids[:length])
        guide.state(False, ids[: max(length - 1, 0)])
    assert len(steps) == len(ids)


def test_what_is_kept_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.generation.constraint.guide.MOST_PREFIXES", 3)
    monkeypatch.setattr("tfkit.generation.constraint.guide.MOST_BYTES", 1)
    tokenizer = made("character")
    guide = Guide(automaton_of("[a-z ]{0,30}"), tokenizer, {2})
    ids = tokenizer.encode("the small cat sees")
    for length in (*range(len(ids)), 3, 1, 9):
        guide.allowed(guide.state(False, ids[:length]))
        assert guide.state(False, ids[:length]).place == guide.automaton.next(START, "the small cat sees"[:length])
    assert len(guide.states) <= 3 and len(guide.masks) <= 16


def test_a_text_that_has_left_the_pattern_may_only_end() -> None:
    tokenizer = made("character")
    rules = bound(tokenizer, {"type": "regex", "pattern": "[0-9]+"})
    ids = torch.tensor([tokenizer.encode("1 a"), tokenizer.encode("123"), [*tokenizer.encode("12"), 2]])
    scores = rules.scores(torch.zeros(3, tokenizer.vocab_size + 5), ids, torch.tensor([2, 2, 2]))
    possible = [set((row > float("-inf")).nonzero()[:, 0].tolist()) for row in scores]
    digits = {tokenizer.id(digit) for digit in "1234567"}
    assert possible == [{2}, digits | {2}, set()]  # after an end token nothing comes; nor ids that no token has


# --- what is refused


def refusals() -> Iterator[tuple[str, list[Any], str]]:
    pattern = {"type": "regex", "pattern": "a"}
    heat = {"type": "temperature", "temperature": 2.0}
    yield "character", [{"type": "regex", "pattern": "Q+"}], "regex: no allowed text can be written with this voc"
    yield "word", [{"type": "choices", "choices": [" the", "xyz"]}], "choices: 'xyz' cannot be written with this voc"
    yield "word", [{"type": "regex", "pattern": "a", "ends": "zzz"}], "'zzz' is not in the vocabulary"
    yield (
        "character",
        [heat, pattern],
        "regex comes after temperature, which may exclude every token .*; list regex first",
    )
    yield (
        "character",
        [pattern, {"type": "choices", "choices": "a"}],
        "choices comes after regex, which already",
    )


@looped(("kind", "parts", "message"), list(refusals()))
def test_what_cannot_be_is_refused_before_anything_is_computed(kind: str, parts: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bound(made(kind), *parts)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "regex", "pattern": "the"}, "regex: no allowed text can be written after a prompt"),
        (
            {"type": "choices", "choices": [" the", "cat"]},
            "choices: the choice 'cat' cannot be written after a prompt",
        ),
    ],
)
def test_a_space_that_is_missing_is_told(part: dict[str, Any], message: str) -> None:
    tokenizer = made("word")
    with pytest.raises(UsageError, match=f"generate.logits: {message}.*add a leading space"):
        written(tokenizer, bound(tokenizer, part))
    assert set(written(tokenizer, bound(tokenizer, {"type": "choices", "choices": "the"}), pair=True)) == {"the"}


@looped(
    ("said", "message"),
    [
        ("{type: regex, pattern: '(a)\\1'}", r"generate.logits\[0\].pattern: '\\1' at character 4 refers back"),
        ("{type: regex, pattern: '(?=a)b'}", r"pattern: '\(\?=' at character 1 is lookahead or lookbehind"),
        ("{type: regex, pattern: 'a{100000000}'}", "pattern: is too large"),
        ("regex", "needs the option 'pattern'"),
        ("{type: choices, choices: []}", "the list is empty"),
        ("{type: choices, choices: ['']}", "at least 1 character"),
        ("{type: choices, choices: [1]}", "expected a word or text"),
    ],
)
def test_options_that_mean_nothing_are_refused_when_the_recipe_is_read(said: str, message: str) -> None:
    model = {"type": "decoder", "d_model": 8, "num_layers": 1, "vocab_size": 10, "embedding": "tokens"}
    layer = {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 1}}
    model |= {"position": "sinusoidal", "layer": layer, "head": "language_model"}
    with pytest.raises(RecipeError, match=message):
        tfkit.load_recipe({"tfkit": 1, "model": model}, sets=[f"generate.logits=[{said}]"])
