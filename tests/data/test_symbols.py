"""Tokenizers of ids, symbols and k-mers: references in plain Python, files of theirs, and texts that are refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tfkit.core.errors import DataError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.base import continuations
from tfkit.data.tokenizer.word import Frame
from tfkit.generation.constraint import token_texts

from ..interop.made import command

SMILES = r"\[[^]]*\]|Cl|Br|[A-Za-z0-9=#()]"
RECIPE: dict[str, dict[str, object]] = {
    "model": {
        "type": "decoder",
        "d_model": 8,
        "vocab_size": "tokenizer",
        "max_length": 64,
        "num_layers": 1,
        "embedding": "tokens",
        "position": "rotary",
        "layer": {
            "residual": "pre_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 8, "activation": "gelu"},
        },
        "head": "language_model",
    },
    "objective": {"type": "causal_lm", "join": False},
    "train": {"steps": 1, "optimizer": "adam", "schedule": {"type": "constant", "lr": 0.01}, "samples": 0},
}


def fitted(name: str, texts: list[str], **options: object) -> Tokenizer:
    tokenizer = REGISTRY.get("tokenizer", name).Config.model_validate(options).build().fit(texts)
    assert isinstance(tokenizer, Tokenizer)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert (again.special_ids, again.vocab_size) == (tokenizer.special_ids, tokenizer.vocab_size)
    for text in texts[:20]:
        assert again.encode(text) == tokenizer.encode(text)
    return tokenizer


def recipe_of(folder: Path, tokenizer: object, texts: list[str], **train: object) -> Path:
    """A recipe that trains on these lines."""
    (folder / "lines.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    corpus = {"type": "text", "files": "lines.txt"}
    data = {"tokenizer": tokenizer, "train": corpus, "valid": {**corpus, "limit": 5}, "batch": {"size": 4}}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"tfkit": 1, **RECIPE, "data": data, "train": {**RECIPE["train"], **train}}))
    return file


def test_ids_are_numbers_as_they_are() -> None:
    draw = random.Random(0)
    rows = [[draw.randrange(300) for _ in range(draw.randrange(1, 9))] for _ in range(60)]
    tokenizer = fitted("ids", [" ".join(map(str, row)) for row in rows])
    size = max(map(max, rows)) + 1
    assert tokenizer.special_ids == {"pad": size, "start": size + 1, "end": size + 2}
    for row in rows:
        for text in (
            " ".join(map(str, row)),
            json.dumps(row),
            ",".join(map(str, row)),
            f" {row} ",
            "\t".join(map(str, row)),
        ):
            assert tokenizer.encode(text) == row, text
        ids, places = tokenizer.encode_with_places([json.dumps(row)])[0]
        assert [int(json.dumps(row)[begin:end]) for begin, end in places] == ids
        assert tokenizer.decode(row) == " ".join(map(str, row))
    assert not continuations(tokenizer).any()
    given = fitted("ids", ["3"], vocab_size=200_000, special_tokens={"mask": "<mask>"})
    assert (given.encode("199999"), given.id("<mask>"), given.vocab_size) == ([199_999], 200_003, 200_004)


@pytest.mark.full
def test_what_is_no_id_is_refused() -> None:
    tokenizer = fitted("ids", ["25 18 50"])
    odd = ["007", "+5", "-1", "1.5", "1e3", "51", "99999999999999999999", "nan", "٣", "<pad>", "[1,,2]", "[1,2,]"]
    for text in (*odd, "1,234", "[[1]]", "1 [2", "2] 3"):
        with pytest.raises(DataError, match="is not an id; ids are whole numbers from 0 to 50"):
            tokenizer.encode(f"25 {text}" if text[0] != "[" else text)
    for text in ("", " ", "[]", "[ ]"):
        assert tokenizer.encode(text) == []
    unknown = fitted("ids", ["25 18 50"], special_tokens={"unknown": "<unk>"})
    assert unknown.encode("25 -1 51 <unk>") == [25, *[unknown.special_ids["unknown"]] * 3]
    for texts in (["word"], ["-5", "1.5"], ["16777215"]):
        with pytest.raises(DataError, match="contain no ids"):
            fitted("ids", texts)


@pytest.mark.full
def test_ids_of_the_texts_may_be_special_tokens() -> None:
    tokenizer = fitted("ids", ["5 10 50"], special_ids={"pad": 0, "end": 1, "unknown": 60})
    assert tokenizer.special_ids == {"pad": 0, "start": 61, "end": 1, "unknown": 60}
    for special in (False, True):
        assert tokenizer.encode("10 1 0 11 100 51", special=special) == [10, 1, 0, 11, 60, 51]
    assert tokenizer.decode([10, 5, 1, 0, 0]) == "10 5"
    shared = fitted("ids", ["5"], special_ids={"start": 2, "end": 2}, special_tokens={"pad": None})
    assert (shared.special_ids, shared.vocab_size) == ({"start": 2, "end": 2}, 6)
    with pytest.raises(DataError, match=r"special_ids.pad: 9 must be below vocab_size: 6"):
        fitted("ids", ["5"], vocab_size=6, special_ids={"pad": 9})


def kmers(text: str, size: int, stride: int) -> list[str]:
    found, place = [], 0
    while place == 0 or place + size - stride < len(text):
        found.append(text[place : place + size])
        place += stride
    return found if text else []


def test_kmers_lose_nothing() -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices("ACGT", k=draw.randrange(1, 24))) for _ in range(150)]
    for size in range(1, 6):
        for stride in range(1, size + 1):
            tokenizer = fitted("kmer", texts, size=size, stride=stride)
            for text, (ids, places) in zip(texts, tokenizer.encode_with_places(texts), strict=True):
                assert [tokenizer.token(id_) for id_ in ids] == kmers(text, size, stride)
                assert [text[begin:end] for begin, end in places] == kmers(text, size, stride)
                assert tokenizer.decode(ids) == text


@pytest.mark.full
def test_kmers_that_are_not_known() -> None:
    tokenizer = fitted("kmer", ["ACGTACGGT"], size=3)
    unknown = tokenizer.special_ids["unknown"]
    assert tokenizer.encode("ACGX") == [tokenizer.id("ACG"), unknown] and tokenizer.unknown("ACGX") == ["CGX"]
    assert tokenizer.encode("A<s>") == [unknown] * 2
    ids, places = tokenizer.encode_with_places(["ACGT<s>GGT"], special=True)[0]
    assert [tokenizer.token(id_) for id_ in ids] == ["ACG", "CGT", "<s>", "GGT"]
    assert places == [(0, 3), (1, 4), (4, 7), (7, 10)]
    short = fitted("kmer", ["ACGTACGGT", "A", "CG"], size=3)
    assert short.decode([short.id(token) for token in ("ACG", "A", "CG", "CGT", "TAC")]) == "ACGTC"
    texts = token_texts(tokenizer)
    assert texts.first[tokenizer.id("ACG")] == b"ACG" and texts.inner[tokenizer.id("ACG")] == b"G"
    for text in ("ACG TAC", "ACG\n", " "):
        with pytest.raises(DataError, match="contains white space"):
            tokenizer.encode(text)
    strict = fitted("kmer", ["ACGTACGGT"], size=3, special_tokens={"unknown": None})
    with pytest.raises(DataError, match="'CGX' is not in the vocabulary"):
        strict.encode("ACGX")


@pytest.mark.full
def test_symbols_between_white_space_or_by_a_pattern() -> None:
    draw = random.Random(2)
    names = ["NOTE_ON_60", "TIME_5", "<x>", "a.b", "é", "1,5", "C#4", "##4"]
    tunes = [" ".join(draw.choices(names, k=draw.randrange(1, 9))) for _ in range(40)]
    tokenizer = fitted("symbols", tunes)
    for tune in tunes:
        ids, places = tokenizer.encode_with_places([tune])[0]
        assert [tokenizer.token(id_) for id_ in ids] == tune.split() == [tune[begin:end] for begin, end in places]
        assert tokenizer.decode(ids) == tune
    assert tokenizer.encode("TIME_5 <s> zzz") == [tokenizer.id("TIME_5"), *[tokenizer.special_ids["unknown"]] * 2]
    assert not continuations(tokenizer).any()
    atoms = ["C", "Cl", "Br", "[nH]", "[C@@H]", "c", "1", "=", "(", ")", "O"]
    smiles = ["".join(draw.choices(atoms, k=draw.randrange(1, 12))) for _ in range(60)]
    tokenizer = fitted("symbols", smiles, by=SMILES)
    for text in smiles:
        ids, places = tokenizer.encode_with_places([text])[0]
        assert [tokenizer.token(id_) for id_ in ids] == re.findall(SMILES, text)
        assert [text[begin:end] for begin, end in places] == re.findall(SMILES, text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.unknown("Cl C$$Zn") == [" ", "$$", "Z", "n"]
    with pytest.raises(DataError, match=r"'\$' is not in the vocabulary"):
        fitted("symbols", smiles, by=SMILES, special_tokens={"unknown": None}).encode("C$")
    few = fitted("symbols", ["a a a b b c"], vocab_size=5, minimum_count=2)
    assert few.vocab_size == 5 and few.decode(few.encode("a b c")) == "a"
    for texts, message in ((["a <s> b"], "contain '<s>'"), ([" ", "\n"], "contain no symbols"), ([], "no text")):
        with pytest.raises(DataError, match=message):
            fitted("symbols", texts)


@pytest.mark.full
def test_patterns_that_go_wrong() -> None:
    for by, message in (
        ("(", "not a regular expression"),
        ("(" * 4500 + "a" + ")" * 4500, "not a regular expression"),
        ("a" * 10_001, "10000"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted("symbols", ["a"], by=by)
    for by, message in (("x*", "no symbols"), ("", "no symbols"), ("(?=.)", "no symbols"), ("(a+)+$", "retry-limit")):
        with pytest.raises(DataError, match=message):
            fitted("symbols", ["a" * 60 + "!"], by=by)


@pytest.mark.full
def test_bits_per_symbol_count_symbols_of_the_text() -> None:
    part: Any = REGISTRY.get("metric", "bits_per_symbol")

    def units(texts: list[str], **options: object) -> int:
        return int(part.Config.model_validate(options).build().units(texts))

    assert units(["a b  c", "d"]) == 4 and units(["CCl[nH] C", "$"], symbol=SMILES) == 4
    assert part.Config().build().from_loss(np.log(2)) == pytest.approx(1)
    with pytest.raises(UsageError, match=r"white space; write \{type: bits_per_symbol, symbol: '.'\}"):
        part.Config().build().check_units(["ACGT", "A"])
    part.Config().build().check_units(["ACGT", "A C"])
    assert units(["ACGT"]) == 1


@pytest.mark.full
def test_check_names_the_place_of_a_text_that_is_refused(tmp_path: Path) -> None:
    result = command("check", recipe_of(tmp_path, "ids", ["1 2 3", "4 -5 6", "7"]))
    assert (
        result.exit_code == 2 and "lines.txt:2: '-5' is not an id; ids are whole numbers from 0 to 7" in result.output
    )
    result = command("check", recipe_of(tmp_path, {"type": "ids", "vocab_size": 6}, ["1 2 3", "4 5", "9"]))
    assert result.exit_code == 2 and "lines.txt:3: '9' is not an id" in result.output
    result = command("check", recipe_of(tmp_path, {"type": "kmer", "size": 3}, ["ACGT", "AC GT"]))
    assert result.exit_code == 2 and "lines.txt:2: 'AC GT' contains white space" in result.output
    assert command("check", recipe_of(tmp_path, "ids", ["1 2 3", "4 5 6", "7"])).exit_code == 0


@pytest.mark.full
def test_exported_tokenizers_read_as_here(tmp_path: Path) -> None:
    import transformers

    draw = random.Random(3)
    numbers = [" ".join(str(draw.randrange(40)) for _ in range(8)) for _ in range(20)]
    letters = ["".join(draw.choices("ACGT", k=12)) for _ in range(20)]
    for name, tokenizer, texts in (
        ("ids", "ids", numbers),
        ("named", {"type": "ids", "special_ids": {"pad": 40, "start": 41, "end": 42}}, numbers),
        ("symbols", "symbols", numbers),
        ("by", {"type": "symbols", "by": "A|CG|."}, letters),
        ("codons", {"type": "kmer", "size": 3, "stride": 3}, letters),
        ("kmers", {"type": "kmer", "size": 3}, letters),
    ):
        metric = {"type": "bits_per_symbol", **({} if texts is numbers else {"symbol": "."})}
        run, out = tmp_path / f"run-{name}", tmp_path / f"out-{name}"
        trained = command("train", recipe_of(tmp_path, tokenizer, texts, metrics=[metric]), "--out", run)
        assert trained.exit_code == 0 and "bits_per_symbol" in trained.output, trained.output
        exported = command("export", run, out)
        assert ("reads k-mers separated by spaces" in exported.output) == (name == "kmers"), exported.output
        own, theirs = Tokenizer.load(run / "tokenizer.json"), transformers.AutoTokenizer.from_pretrained(out)
        assert (theirs.pad_token_id, theirs.eos_token_id) == (own.special_ids["pad"], own.special_ids["end"])
        for text in texts:
            read = " ".join(kmers(text, 3, 1)) if name == "kmers" else text
            assert theirs(read, add_special_tokens=False)["input_ids"] == own.encode(text)
            assert theirs.decode(own.encode(text)) == own.decode(own.encode(text)) == text
        back = command("import", out, "--out", tmp_path / f"back-{name}")
        assert back.exit_code == 0, back.output
        again = Tokenizer.load(tmp_path / f"back-{name}" / "tokenizer.json")
        assert Frame.of_template(again) == Frame((own.special_ids["start"],), (), ())
        assert again.encode_batch(texts) == own.encode_batch(texts) and again.special_ids == own.special_ids


@pytest.mark.full
def test_a_tag_stands_before_kmers() -> None:
    tokenizer = fitted("kmer", ["ACGTAC"], size=3).with_tags(["<rna>"])
    ids, places = tokenizer.encode_with_places(["<rna> ACGT"])[0]
    assert [tokenizer.token(id_) for id_ in ids] == ["<rna>", "ACG", "CGT"]
    assert places == [(0, 6), (6, 9), (7, 10)] and tokenizer.encode("<rna> ACGT") == ids


@pytest.mark.full
def test_large_special_ids_need_a_vocab_size() -> None:
    with pytest.raises(DataError, match=r"2,000,000,000 is not below 1,048,576; set vocab_size"):
        fitted("ids", ["1 2"], special_ids={"pad": 2_000_000_000})
