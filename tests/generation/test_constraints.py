"""Texts that must be one of some, or match a pattern: with every kind of tokenizer, strategy and prompt."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from collections.abc import Sequence
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
from tfkit.generation.constraint import Guide, guide_of, token_texts
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import prepare
from tfkit.generation.texts import find

from ..sampling import looped, some_rows

pytest.importorskip("llguidance")

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
ALL: list[Any] = [
    "greedy", {"type": "sample", "n_best": 2}, {"type": "beam", "num_beams": 3, "n_best": 3}, {"type": "speculative"},
    {"type": "contrastive", "k": 3}, {"type": "diverse_beam", "n_best": 4},
]  # fmt: skip
TOKENIZERS: dict[str, Tokenizer] = {}


def falling_back() -> Tokenizer:
    """Pieces with a mark for the space, and bytes for other characters, as in Llama."""
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


def regex(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "regex", "pattern": pattern, **more}


def choices(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "choices", "choices": list(texts), **more}


def bound(tokenizer: Tokenizer, *parts: Any, stop: Sequence[Any] = ("end_token",)) -> Rules:
    return bound_rules(
        [Slot("logits").validate(part) for part in parts], [Slot("stop").validate(part) for part in stop], tokenizer
    )


def written(
    tokenizer: Tokenizer, rules: Rules, strategy: Any = "greedy", room: int = 40, pair: bool = False
) -> list[str]:
    """Generate with a small untrained model after prompts of unlike length."""
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


@pytest.mark.full
@looped("kind", KINDS)
def test_texts_of_tokens_are_those_that_decode_gives(kind: str) -> None:
    tokenizer, chance = made(kind), random.Random(4)
    texts = token_texts(tokenizer)
    assert not any(texts.inner[id_] or texts.first[id_] for id_ in tokenizer.special_ids.values())
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


PATTERNS = {
    "character": [r" ?[0-9]{2,4}", r"(the|a) [a-z]+\.?", r"[^a]+"],
    "word": [r"( the)+ (cat|dog)", r" ?[a-z]+", r"the|( a)? small"],
    "bpe": [r" ?[0-9]{2,4}", r"(the|a) [a-z]+", r"é|[Üß]*x?"],
    "byte_level": [r" ?[0-9]{2,4}", r"漢?[字-孙]\U0001F642", r"[^a]{2,}", r"[ä-ü]{1,3}"],
    "wordpiece": [r" ?[0-9]+ [a-z]+", r"the (cat|dog)|( the)+ small", r" ?[a-z]{1,3}"],
    "unigram": [r" ?[0-9]{2,4}", r"(the|a) [a-z]+", r"漢?[字-孙]\U0001F642"],
    "byte_fallback": [r" ?[0-9]{2,4}", r"[𝒜-𝒟漢é]+( x)?", r" ?the cat"],
}


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_tokens_match(kind: str) -> None:
    """Draw any allowed token at each step; independent reference: re.fullmatch of what decode returns."""
    tokenizer, chance = made(kind), random.Random(1)
    end = tokenizer.special_ids["end"]
    visible = next(id_ for id_, text in enumerate(token_texts(tokenizer).inner) if text.isalpha())
    complete = drawn = 0
    for pattern in PATTERNS[kind]:
        guide = Guide(pattern, tokenizer, frozenset({end}))
        for prompt in ([], [visible]):
            first = not prompt
            for _ in range(12 if guide.begins[first] else 0):
                ids: list[int] = []
                while len(ids) < 30 and ids[-1:] != [end]:
                    allowed = guide.allowed(first, ids, 30 - len(ids)).nonzero()[:, 0].tolist()
                    assert allowed or guide.complete(first, ids), (pattern, ids)
                    ids.append(end if end in allowed and chance.random() < 0.3 else chance.choice(allowed))
                drawn += 1
                if guide.complete(first, ids):
                    complete += 1
                    text = tokenizer.decode([*prompt, *ids])[len(tokenizer.decode(prompt)) :]
                    assert re.fullmatch(pattern, text), (pattern, text)
    assert complete > 0.8 * drawn > 20


@pytest.mark.full
def test_all_spellings_of_a_match_are_allowed() -> None:
    tokenizer, texts = made("byte_level"), token_texts(made("byte_level")).inner
    guide = Guide("the cat|the dog", tokenizer, frozenset({1}))
    for done, rest in (("", "the cat"), ("the ", "cat"), ("the ", "dog")):
        ids = [tokenizer.id(sign) for sign in done.replace(" ", "Ġ")]
        allowed = {texts[id_] for id_ in guide.allowed(False, ids).nonzero()[:, 0].tolist()}
        assert {text for text in texts if text and rest.encode().startswith(text)} <= allowed


@pytest.mark.parametrize(("strategy", "pair"), some_rows((strategy, pair) for pair in (0, 1) for strategy in ALL))
def test_every_strategy_writes_whole_matches(strategy: Any, pair: bool) -> None:
    """Also within the fewest tokens, with a stop rule of length, and after rules of sampling."""
    tokenizer, pattern = made("byte_level"), r" ?([Tt]he (small )*(cat|dog)s?)+;"
    for room, stop in ((12, []), (40, []), (40, [{"type": "length", "tokens": 12}])):
        rules = bound(tokenizer, regex(pattern), {"type": "no_repeat_ngram", "size": 30}, stop=["end_token", *stop])
        texts = written(tokenizer, rules, strategy, room, bool(pair))
        assert texts and all(re.fullmatch(pattern, text) for text in texts), texts
    listed = ["new", "new house", " the 🙂", "(a|b)*"]
    assert set(written(tokenizer, bound(tokenizer, choices(*listed)), strategy)) <= set(listed)


@pytest.mark.full
def test_rules_of_sampling_draw_from_what_is_left() -> None:
    sampling = [{"type": "temperature", "temperature": 3.0}, {"type": "top_k", "k": 2}]
    rules = bound(made("character"), regex(r"\d(\d\d){0,9}"), *sampling)
    texts = written(made("character"), rules, {"type": "sample", "n_best": 5})
    assert all(re.fullmatch(r"\d(\d\d){0,9}", text) for text in texts) and len(set(texts)) > 3


@pytest.mark.full
def test_a_choice_may_start_another() -> None:
    tokenizer = made("character")
    rules = bound(tokenizer, choices("cat", "cats", "the cat"), stop=[{"type": "strings", "strings": "e"}])
    guide, ids = rules.logits[0].guide, tokenizer.encode("cats")
    assert set(guide.allowed(False, ids[:3]).nonzero()[:, 0].tolist()) == {2, ids[3]}
    assert guide.allowed(False, ids).nonzero()[:, 0].tolist() == [2]
    assert torch.equal(pickle.loads(pickle.dumps(guide)).allowed(False, ids[:3]), guide.allowed(False, ids[:3]))
    assert [rules.complete([], tokenizer.encode(text)) for text in ("the cat", "the", "", "the catt")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert bound(tokenizer).complete([], [])


@pytest.mark.full
def test_without_an_end_token_a_text_stops_when_it_is_complete() -> None:
    part: Any = {"type": "character", "special_tokens": {"end": None}}
    endless = Slot("tokenizer").validate(part).build().fit(LINES)
    assert set(written(endless, bound(endless, choices("cat", "house"), stop=[]))) <= {"cat", "house"}
    # an end that is a text of its own, cut off by no rule
    assert set(written(endless, bound(endless, choices("the", "the ", ends="?"), stop=[]))) <= {"the?", "the ?"}
    for part in (choices("cat", "cat s"), regex("a+")):
        with pytest.raises(UsageError, match="may be the beginning of a longer one, but the tokenizer has no end"):
            bound(endless, part, stop=[])


@pytest.mark.full
def test_a_text_that_left_the_pattern_may_only_end() -> None:
    tokenizer = made("character")
    rules = bound(tokenizer, regex("[0-9]+"))
    ids = torch.tensor([tokenizer.encode("1 a"), tokenizer.encode("123"), [*tokenizer.encode("12"), 2]])
    scores = rules.scores(torch.zeros(3, tokenizer.vocab_size + 5), ids, torch.tensor([2, 2, 2]))
    possible = [set((row > float("-inf")).nonzero()[:, 0].tolist()) for row in scores]
    digits = {tokenizer.id(digit) for digit in "1234567"}
    assert possible == [{2}, digits | {2}, set()]  # no token follows an end token; ids without a token are excluded


HEAT = {"type": "temperature", "temperature": 2.0}


@looped(
    ("kind", "parts", "room", "message"),
    [
        ("character", [regex("Q+")], 9, "regex: no allowed text can be written with this voc"),
        ("word", [choices(" the", "xyz")], 9, "choices: 'xyz' cannot be written with this voc"),
        ("word", [regex("a", ends="zzz")], 9, "'zzz' is not in the vocabulary"),
        ("character", [HEAT, regex("a")], 9, "regex comes after temperature, which may exclude .*; list regex first"),
        ("character", [regex("a"), choices("a")], 9, "choices comes after regex, which already"),
        ("word", [regex("the")], 9, "regex: no allowed text can be written after a prompt.*add a leading space"),
        ("word", [choices(" the", "cat")], 9, "the choice 'cat' cannot be written after a prompt.*add a leading space"),
        ("character", [regex(r"\d{4}:\d")], 5, "regex: the shortest allowed text takes 6 tokens, but the limit is 5"),
        ("character", [choices("house", "cat")], 2, "choices: the shortest allowed text takes 3 tokens, but the lim"),
    ],
)
@pytest.mark.full
def test_impossible_texts_are_refused_before_anything_is_computed(
    kind: str, parts: list[Any], room: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        written(made(kind), bound(made(kind), *parts), room=room)


@looped(
    ("said", "message"),
    [
        ("{type: regex, pattern: 'x(?=a)'}", r"generate.logits\[0\].pattern: '\(\?=' at character 2: look-around"),
        ("{type: regex, pattern: '(a)\\1'}", r"'\\1' at character 4: backreferences are not supported"),
        ("{type: regex, pattern: '^(a'}", r"'\(' at character 2: unclosed group"),
        ("{type: regex, pattern: 'a{3,2}'}", r"'\{3,2\}' at character 2: invalid repetition count range"),
        ("{type: regex, pattern: '[z-a]'}", r"'z-a' at character 2: invalid character class range"),
        ("{type: regex, pattern: '*a'}", r"'\*' at character 1: repetition operator missing expression"),
        ("{type: regex, pattern: '\\bfoo'}", r"'\\b' at character 1: is a boundary"),
        ("{type: regex, pattern: 'a$b'}", r"'\$' at character 2: is a boundary inside of the pattern"),
        ("{type: regex, pattern: 'a\\'}", "escapes nothing; write "),
        ("{type: regex, pattern: 'a[^\\s\\S]'}", "matches no text at all"),
        ("regex", "needs the option 'pattern'"),
        ("{type: choices, choices: []}", "the list is empty"),
        ("{type: choices, choices: ['']}", "at least 1 character"),
        ("{type: choices, choices: [1]}", "expected a word or text"),
    ],
)
def test_wrong_options_are_refused_when_the_recipe_is_read(said: str, message: str) -> None:
    model = {"type": "decoder", "d_model": 8, "num_layers": 1, "vocab_size": 10, "embedding": "tokens"}
    layer = {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 1}}
    model |= {"position": "sinusoidal", "layer": layer, "head": "language_model"}
    with pytest.raises(RecipeError, match=message):
        tfkit.load_recipe({"tfkit": 1, "model": model}, sets=[f"generate.logits=[{said}]"])


@pytest.mark.full
def test_a_tokenizer_that_looks_ahead_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a</w>": 0, "b</w>": 1, "</s>": 2}, []))
    backend.decoder = decoders.BPEDecoder("</w>")
    with pytest.raises(UsageError, match=r"regex: constraints do not work with this tokenizer: with BPEDecoder, a tok"):
        bound(Tokenizer(backend, {"end": "</s>"}), regex("a"))


@pytest.mark.slow
def test_large_patterns_take_bounded_work() -> None:
    """Each is either followed or refused in one line; the process ends if memory runs away."""
    code = """
import resource
from tests.generation.test_constraints import *
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for pattern in ("a{1000000}", "(?:){99999999}", "((a{0,100}){0,100}){0,100}", "(a|b)*a(a|b){30}", "(\\w{1,99}){9}"):
    try:
        guide = bound(made("character"), regex(pattern)).logits[0].guide
        print(guide.allowed(True, made("character").encode("a" * 50), 9).any().item())
    except UsageError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout.count("\n") == 5, ran.stderr


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"generate.logits: regex: constraints need the package llguidance: pip inst"):
        bound(made("word"), regex("unheard of"))


@pytest.mark.full
def test_a_leading_space_that_the_tokens_lose_is_no_text() -> None:
    guide = guide_of(" cat", made("unigram"), frozenset({2}))
    assert guide.begins == {True: False, False: True}
    assert guide_of("cat", made("unigram"), frozenset({2})).begins == {True: True, False: True}


@pytest.mark.full
def test_the_fewest_tokens_need_no_limit_that_is_too_much_work() -> None:
    assert guide_of("[a-z]+e", made("word"), frozenset({2})).needs(first=True) == 1
