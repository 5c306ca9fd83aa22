"""Tokenizers: exact round trips, special tokens and their roles, files, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import models, pre_tokenizers, processors

from tfkit.core.errors import DataError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer

from ..sampling import looped

TEXTS = [
    "Ein Mann, der (schnell) läuft.",
    "Two young, White males aren't outside near 12 many bushes!",
    'Er sagt: "Das T-Shirt kostet 3,50 €."',
    "lower lowest low slow slower, newer newest new",
]
LEARNED: dict[str, dict[str, Any]] = {
    "character": {},
    "word": {},
    "bpe": {"vocab_size": 120},
    "byte_level": {"vocab_size": 300, "byte_level": True},
    "wordpiece": {"vocab_size": 150},
    "unigram": {"vocab_size": 120},
    "byte_fallback": {"vocab_size": 360, "byte_fallback": True},
}
EXACT = ["character", "bpe", "byte_level", "unigram", "byte_fallback"]
PARTS = {"byte_level": "bpe", "byte_fallback": "unigram"}


def part(name: str, **options: Any) -> Any:
    """The tokenizer part of that name."""
    return REGISTRY.get("tokenizer", PARTS.get(name, name)).Config.model_validate(options).build()


def fitted(name: str, texts: list[str] = TEXTS, **options: Any) -> Tokenizer:
    """A tokenizer of that name fitted on `texts`."""
    tokenizer = part(name, **{**LEARNED[name], **options}).fit(texts)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@lru_cache
def fitted_once(name: str, *texts: str) -> Tokenizer:
    """`fitted`, made once for all the texts that are tried on it."""
    return fitted(name, list(texts))


TRAINED = "aäbß ,.()'-1\n\u00a0\t\u2028\r"


@pytest.mark.parametrize("name", EXACT)
@given(text=st.text(alphabet=TRAINED))
def test_any_text_of_trained_characters_comes_back(name: str, text: str) -> None:
    tokenizer = fitted_once(name, TRAINED, "ab ab ab, (ab).")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.full
@settings(max_examples=30)
@given(text=st.text())
def test_bytes_know_every_text(text: str) -> None:
    for name in ("byte_level", "byte_fallback"):
        tokenizer = fitted_once(name, "hello")
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_wordpiece_cuts_words_and_joins_them() -> None:
    tokenizer = fitted("wordpiece", ["low lower lowest newer newest widest"] * 5, vocab_size=24)
    pieces = [tokenizer.token(index) for index in tokenizer.encode("lowest newer")]
    assert len(pieces) > 2 and any(piece.startswith("##") for piece in pieces)
    assert tokenizer.decode(tokenizer.encode("lowest newer")) == "lowest newer"
    assert fitted("wordpiece").decode(fitted("wordpiece").encode(TEXTS[0])) == "Ein Mann, der ( schnell ) läuft."


def test_wordpiece_agrees_with_the_library_on_merges() -> None:
    """The pieces found through stand-in characters are the pieces of the library's own trainer, up to their order."""
    texts = ["lower lowest low " * 20, "newer new " * 15, "slow " * 7]
    backend = tokenizers.Tokenizer(models.WordPiece(vocab={}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer: Any = tokenizers.trainers.WordPieceTrainer(vocab_size=30, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    special = {"pad": None, "start": None, "end": None, "unknown": "<unk>"}
    ours = fitted("wordpiece", texts, vocab_size=30, special_tokens=special)
    assert set(ours.backend.get_vocab()) == set(backend.get_vocab())


@pytest.mark.full
def test_unigram_encodes_as_the_library_does() -> None:
    """Rounded probabilities and sorted pieces encode unseen text as those of the library's own trainer do."""
    words = sorted({word for text in summaries_text() for word in text.split()})
    learned, unseen = " ".join(words[::2]), " ".join(words[1::2]) + " ☃"
    ours = fitted("unigram", [learned], vocab_size=500)
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer, backend.pre_tokenizer = ours.backend.normalizer, ours.backend.pre_tokenizer
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    trainer: Any = tokenizers.trainers.UnigramTrainer(
        vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([learned], trainer)
    assert set(ours.backend.get_vocab()) == set(backend.get_vocab()) and ours.vocab_size == 500
    for word in words:  # pieces in other orders have one probability: ----- -- and -- -----
        assert sorted(ours.backend.encode(word).tokens) == sorted(backend.encode(word).tokens)
    assert len(words) > 1000 and ours.unknown(unseen)


def summaries_text() -> list[str]:
    return [example["text"] for example in REGISTRY.get("corpus", "docstrings").Config(limit=60).build().examples()]


def test_unigram_names_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="vocab_size: 10 is too small for the distinct characters"):
        fitted("unigram", vocab_size=10)
    with pytest.raises(ValidationError, match="byte_fallback needs no unknown token"):
        part("unigram", vocab_size=300, byte_fallback=True, special_tokens={"unknown": "<unk>"})
    with pytest.raises(ValidationError, match="needed without byte_fallback"):
        part("unigram", vocab_size=300, special_tokens={"unknown": None})
    with pytest.raises(ValidationError, match="the minimum is 260"):
        part("unigram", vocab_size=259, byte_fallback=True)
    assert fitted("unigram").unknown("Ein ☃ Mann") == ["☃"]
    assert max(map(len, fitted("unigram", longest=3).backend.get_vocab())) <= len("</s>") + 1


@pytest.mark.full
@looped("kind", ["WordPiece", "Unigram"])
def test_a_vocabulary_is_the_same_in_another_process(kind: str) -> None:
    code = (
        f"from tfkit.data.tokenizer import {kind};"
        f"print({kind}.Config(vocab_size=150).build().fit({TEXTS!a}).to_json().encode())"
    )
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in "ab"}
    assert len(runs) == 1


@looped("name", LEARNED)
def test_a_saved_tokenizer_is_read_by_the_library(name: str, tmp_path: Path) -> None:
    special: dict[str, str | None] = {"pad": "[P]", "end": "[E]", "mask": "[M]", "separator": "[X]"}
    before, folder = fitted(name, special_tokens=special), tmp_path / name
    before.save(folder / "tokenizer.json")
    assert Tokenizer.load(folder / "tokenizer.json").to_json() == before.to_json()
    assert [entry.name for entry in folder.iterdir()] == ["tokenizer.json"]
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert plain.encode(TEXTS[0]).ids == before.encode(TEXTS[0])


def test_special_ids_are_given_in_order_from_zero() -> None:
    assert fitted("character").special_ids == {"pad": 0, "start": 1, "end": 2, "unknown": 3}
    assert fitted("byte_level").special_ids == {"pad": 0, "start": 1, "end": 2}
    tokenizer = fitted("word", special_tokens={"start": None, "mask": "<mask>"})
    assert tokenizer.special_ids == {"pad": 0, "end": 1, "unknown": 2, "mask": 3}


class Between(list[str]):
    """Texts during whose encoding somebody else encodes others, as another thread may."""

    def __init__(self, texts: list[str], meanwhile: Callable[[], object]) -> None:
        super().__init__(texts)
        self.meanwhile = meanwhile

    def __iter__(self) -> Iterator[str]:
        self.meanwhile()
        return super().__iter__()


@looped("special", [False, True])
def test_a_call_reads_special_tokens_as_it_says_whatever_another_one_says_meanwhile(special: bool) -> None:
    tokenizer = fitted("bpe")
    alone = tokenizer.encode_batch(["a </s> b"], special=special)
    texts = Between(["a </s> b"], lambda: tokenizer.encode("a", special=not special))
    assert tokenizer.encode_batch(texts, special=special) == alone


def test_decode_leaves_special_tokens_out() -> None:
    tokenizer = fitted("bpe")
    ids = [tokenizer.special_ids["start"], *tokenizer.encode(TEXTS[0]), tokenizer.special_ids["end"], 0, 0]
    assert tokenizer.decode(ids) == TEXTS[0]
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    with pytest.raises(UsageError, match="not be negative, got -100"):
        tokenizer.decode([-100])


def test_tokens_and_ids() -> None:
    tokenizer = fitted("character")
    assert tokenizer.token(tokenizer.id("E")) == "E"
    assert "E" in tokenizer and "☃" not in tokenizer
    with pytest.raises(UsageError, match="'☃' is not in the vocabulary"):
        tokenizer.id("☃")
    for index in (-1, tokenizer.vocab_size):
        with pytest.raises(UsageError, match=f"no token has id {index}"):
            tokenizer.token(index)


def test_lowercase_and_counts() -> None:
    assert "▁ein" in fitted("word", lowercase=True) and "▁Ein" not in fitted("word", lowercase=True)
    tokenizer = fitted("word", ["a a a b b c"], minimum_count=2)
    assert "▁b" in tokenizer and "▁c" not in tokenizer
    tokenizer = fitted("word", ["a a a b b c"], vocab_size=5)
    assert tokenizer.vocab_size == 5 and "▁a" in tokenizer and "▁b" not in tokenizer
    assert fitted("wordpiece", lowercase=True).decode(fitted("wordpiece", lowercase=True).encode("Ein")) == "ein"
    for name in ("bpe", "byte_level"):
        tokenizer = fitted(name, lowercase=True)
        assert tokenizer.decode(tokenizer.encode("EIN MANN")) == "ein mann"


@looped("name", ["character", "word"])
def test_without_unknown_the_unknown_is_named(name: str) -> None:
    tokenizer = fitted(name, special_tokens={"unknown": None})
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]
    with pytest.raises(DataError, match="☃' is not in the vocabulary"):
        tokenizer.encode("☃")


def test_what_is_no_text_or_too_much_is_refused() -> None:
    for name in ("bpe", "wordpiece"):
        with pytest.raises(DataError, match=r"vocab_size: 20 is too small; .* need \d+"):
            fitted(name, vocab_size=20)
    for name in LEARNED:
        with pytest.raises(DataError, match="no text to learn from"):
            fitted(name, [""])
        with pytest.raises(DataError, match="lone surrogate"):
            fitted(name).encode("a\ud800")
    with pytest.raises(UsageError, match="got NoneType"):
        fitted("character").encode_batch(["a", None])  # type: ignore[list-item]


@looped(
    ("name", "options", "message"),
    [
        ("character", {"special_tokens": {"pad": "</s>"}}, "pad and end are both '</s>'"),
        ("character", {"special_tokens": {"pad": ""}}, "got ''"),
        ("character", {"special_tokens": {"pad": "PAD"}}, "got 'PAD'"),
        ("character", {"special_tokens": {"pad": "_"}}, "got '_'"),
        ("character", {"special_tokens": {"pad": "<my pad>"}}, "no space"),
        ("character", {"special_tokens": {"padding": "<pad>"}}, "special_tokens.padding"),
        ("character", {"vocab_size": 9}, "vocab_size"),
        ("word", {"vocab_size": True}, "valid integer"),
        ("word", {"vocab_size": 4}, "the minimum is 5"),
        ("bpe", {}, "vocab_size"),
        ("bpe", {"vocab_size": 0}, "greater than or equal to 1"),
        ("bpe", {"vocab_size": 100, "byte_level": True}, "the minimum is 259"),
        ("bpe", {"vocab_size": 300, "byte_level": True, "special_tokens": {"unknown": "<unk>"}}, "unknown: none"),
        ("bpe", {"vocab_size": 300, "special_tokens": {"unknown": None}}, "set special_tokens.unknown"),
        ("wordpiece", {"vocab_size": 300, "special_tokens": {"unknown": None}}, "set special_tokens.unknown"),
        ("wordpiece", {"vocab_size": 3}, "the minimum is 5"),
        ("file", {}, "path"),
        ("file", {"path": "x", "special_tokens": {"stop": "<s>"}}, "stop"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        part(name, **options)
    assert message in str(caught.value)


def given_file(path: Path, tokens: list[str], words: list[str], **extra: Any) -> Path:
    """A tokenizer.json as others write it, with truncation and padding switched on."""
    vocabulary = {token: index for index, token in enumerate([*tokens, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=tokens[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(tokens)
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    for key, value in extra.items():
        setattr(backend, key, value)
    backend.save(str(path))
    return path


def test_a_given_file_is_read_with_its_roles(tmp_path: Path) -> None:
    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    template = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    path = given_file(tmp_path / "tokenizer.json", names, ["a", "b"], post_processor=template)
    tokenizer = part("file", path=str(path)).fit([])
    assert tokenizer.special_ids == {"pad": 1, "start": 2, "end": 3, "unknown": 0, "mask": 4, "separator": 3}
    assert tokenizer.encode("a b a b a b") == [5, 6, 5, 6, 5, 6]
    tokenizer.save(tmp_path / "again.json")
    again = Tokenizer.load(tmp_path / "again.json")
    assert again.special_ids == tokenizer.special_ids
    assert again.backend.encode("a").ids == [2, 5, 3]  # its own template still stands


def test_given_names_win_over_common_ones(tmp_path: Path) -> None:
    path = given_file(tmp_path / "t.json", ["<unk>", "<s>", "@begin", "<|endoftext|>"], ["a"])
    given = {"start": "@begin", "end": "<|endoftext|>", "pad": "<|endoftext|>"}
    tokenizer = part("file", path=str(path), special_tokens=given).fit([])
    assert tokenizer.special_ids == {"pad": 3, "start": 2, "end": 3}
    tokenizer.save(tmp_path / "again.json")
    assert Tokenizer.load(tmp_path / "again.json").special_ids == tokenizer.special_ids
    other = Tokenizer.load(tmp_path / "again.json", {"end": "<s>"})
    assert Tokenizer.from_json(other.to_json()).special_ids == {"end": 1}
    none = Tokenizer.load(tmp_path / "again.json", {})
    assert Tokenizer.from_json(none.to_json()).special_ids == {}
    with pytest.raises(DataError, match=r"t\.json: the tokenizer has no token for pad '<none>'"):
        part("file", path=str(path), special_tokens={"pad": "<none>"}).fit([])


def test_the_vocabulary_reaches_to_the_highest_id(tmp_path: Path) -> None:
    path = given_file(tmp_path / "t.json", ["<unk>"], ["a"])
    data = json.loads(path.read_text())
    data["model"]["vocab"]["far"] = 99
    path.write_text(json.dumps(data))
    assert Tokenizer.load(path).vocab_size == 100


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for content in ("", "{}", "[1]", '{"model": 1}', "not json", '{"version": "1.0"'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer\.json"):
            Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match=r"the tokenizer .*gone\.json: no such file"):
        Tokenizer.load(tmp_path / "gone.json")
    with pytest.raises(DataError, match=r"cannot be read|is not a regular file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"the tokenizer .*bytes\.json: cannot be read: not UTF-8"):
        Tokenizer.load(tmp_path / "bytes.json")


def test_save_keeps_the_old_file_when_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, path = fitted("character"), tmp_path / "tokenizer.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"tokenizer\.json: .*No space left"):
        tokenizer.save(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]
