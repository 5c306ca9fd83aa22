"""A stranger's tokenizer.json ends in words: never in an aborted program, a panic, or a machine without memory."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import normalizers

from tfkit.core.errors import DataError
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.backend import GROWTH, read_backend
from tfkit.data.tokenizer.word import Frame

from ..sampling import looped

VOCABULARY = {"<unk>": 0, "a": 1, "b": 2}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
MARK = {"SpecialToken": {"id": "a", "type_id": 0}}


def words(**changes: Any) -> dict[str, Any]:
    """A small tokenizer.json."""
    plain = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    plain |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    return {**plain, "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "<unk>"}, **changes}


def read(**changes: Any) -> Tokenizer:
    return Tokenizer.from_json(json.dumps(words(**changes)))


def token(text: str, id_: Any) -> dict[str, Any]:
    return {"id": id_, "content": text, **ADDED}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def several(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def template(single: Any, pair: Any = (A, B), **tokens: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": list(single), "pair": list(pair), "special_tokens": tokens}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


@looped(
    ("changes", "message"),
    [
        ({"added_tokens": [token("<x>", 10**9)]}, "the token '<x>' has id 1,000,000,000; with 4 tokens"),
        ({"model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 10**9}, "unk_token": "<unk>"}}, "token 'a'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 2**24 + 1}, "merges": []}}, "token 'b' has id 16,777,217"),
        ({"added_tokens": [token("\x1b[31m", 10**9)]}, r"the token '\x1b[31m' has id"),
        ({"added_tokens": [token("<x>", -1)]}, "not a tokenizer.json"),
        ({"normalizer": several(*[replace("a", "aa")] * 40)}, "normalizer: replacements expand"),
        ({"normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "aa"}] * 40}}, "normalizer: replace"),
        ({"normalizer": several(replace("a", "b" * 40), replace("b", "c" * 40))}, "normalizer: replacements expand"),
        ({"normalizer": several(replace("a", "B" * 99), {"type": "Lowercase"}, replace("b", "c" * 99))}, "normalizer:"),
        ({"normalizer": replace(".", "x" * 1001, "Regex")}, "normalizer: replacements expand"),
        ({"decoder": {"type": "Sequence", "decoders": [replace("a", "aa")] * 40}}, "decoder: replacements expand"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 10**6}}, "normalizer: 1,000,000 characters are prepended"),
        ({"pre_tokenizer": split("a" * 10**5)}, "pre_tokenizer: a regular expression has 100,000 characters"),
        ({"pre_tokenizer": split("((")}, "not a tokenizer.json"),
        ({"post_processor": template([A] * 1000)}, "post_processor: templates repeat a text 2,000 times"),
        ({"post_processor": {"type": "Sequence", "processors": [template([A, A])] * 20}}, "post_processor: templates"),
        (
            {
                "post_processor": template([MARK, A], a={"id": "a", "ids": [1] * 5000, "tokens": ["a"]})
            },
            "post_processor: a template adds 5,000 tokens to a text",
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 7).decode()}},
            "normalizer: precompiled_charsmap declares 4,294,967,295 bytes but has 3",
        ),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "the tokenizer failed: Precompiled"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"],
                       "continuing_subword_prefix": "z" * 9}},
            "the tokenizer failed: ",  # in words that differ between its releases
        ),
        ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}, "normalizer": [1], "decoder": 3}, "not a"),
    ],
)  # fmt: skip
def test_what_would_take_the_program_down_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(**changes)
    assert message in str(caught.value)


@looped(
    ("text", "message"),
    [
        ('{"normalizer":' + '{"normalizers":[' * 9999 + "]}" * 9999 + "}", "nested too deeply"),
        (json.dumps(words()).replace('"a"', '"\\ud800"'), "not a tokenizer.json"),
        ("[]", "expected a mapping"),
        ("1" * 5000, "not a tokenizer.json"),
    ],
)
def test_a_text_that_is_none(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokenizer.from_json(text)


def test_a_regular_expression_of_too_many_steps_is_told() -> None:
    """The library panics over it, which is no Exception."""
    tokenizer = read(pre_tokenizer=split("(a+)+$"))
    for call in (tokenizer.encode, tokenizer.unknown):
        with pytest.raises(DataError, match=r"the tokenizer failed: .*retry-limit-in-match"):
            call("a" * 40 + "b")
    assert tokenizer.encode("b") == [2]


def test_a_template_that_names_no_token_is_told() -> None:
    tokenizer = read(post_processor=template([{"SpecialToken": {"id": "<s>", "type_id": 0}}, A]))
    with pytest.raises(DataError, match="the tokenizer failed"):
        tokenizer.encode_batch(["a"], template=True)
    with pytest.raises(DataError, match="the tokenizer failed"):
        Frame.of_template(tokenizer)


def test_padding_and_truncation_of_a_file_are_never_tried() -> None:
    """A row of 10**12 tokens would be allocated."""
    strategy = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None}
    backend = read_backend(json.dumps(words(padding={**strategy, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"})))
    assert backend.padding is None and backend.encode("a b").ids == [1, 2]
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    assert read_backend(json.dumps(words(truncation=cut))).encode("a b").ids == [1, 2]


def test_roles_that_name_no_token_are_none() -> None:
    marks = {name: {"id": name, "ids": [], "tokens": []} for name in ("tfkit", "tfkit.pad")}
    assert read(post_processor=template([A], **marks)).special_ids == {}


@looped(
    "changes",
    [
        {"added_tokens": [token("<x>", 60_000)]},  # a gap, as files have that reserve ids
        {"normalizer": several(*(replace(sign, "...") for sign in "\u2026\u22ef\u2e31\ufe19\u201c\u201d\u2018\u2019"))},
        {"normalizer": several(replace(" {2,}", " ", "Regex"), {"type": "NFKC"}, {"type": "Prepend", "prepend": " "})},
        {"normalizer": replace("a", "a" * GROWTH)},
        {"post_processor": template([MARK, A], a={"id": "a", "ids": [1], "tokens": ["a"]})},
        {"decoder": {"type": "Sequence", "decoders": [replace("_", " "), {"type": "Fuse"}]}},
    ],
)  # fmt: skip
def test_what_is_usual_is_taken(changes: dict[str, Any]) -> None:
    assert read(**changes).encode("b") == [2]


def test_the_pieces_of_usual_normalizers_are_taken() -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(words()))
    backend.normalizer = normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace("b", "a")])
    assert Tokenizer.from_json(backend.to_str()).encode("B") == [1]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    for path in (tmp_path / "tokenizer.json", Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match=r"is not a regular file|cannot be read"):
            Tokenizer.load(path)
