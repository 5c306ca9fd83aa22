"""`tfkit check` reads the first examples of a recipe's data: what `train` would refuse there, it refuses."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import Result
from rich.cells import cell_len

from tests.training.small import RECIPE
from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Corpus, lines

from ..sampling import looped
from .test_odd_files import CORPORA
from .typed import typed

MODEL = RECIPE["model"]
PAIRS = {"source": "source", "target": "target"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(train: dict[str, Any], *options: str, objective: str = "causal_lm", width: int = 400) -> Result:
    data = {"tokenizer": "character", "train": train}
    return check_recipe({"tfkit": 1, "data": data, "model": MODEL, "objective": objective}, *options, width=width)


def check_recipe(recipe: dict[str, Any], *options: str, width: int = 400) -> Result:
    Path("mine.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return typed("check", "mine.yaml", *options, columns=width)


def corpus(kind: str, **options: Any) -> Corpus:
    made: Corpus = REGISTRY.get("corpus", kind).Config.model_validate(options).build()
    return made


# --- faults

FAULTS: list[tuple[dict[str, Any], dict[str, bytes], str]] = [
    (
        {"type": "csv", "file": "a.csv", "fields": {"text": "text"}},
        {"a.csv": b"text;label\nfine;for\n"},
        "a.csv:1: no column 'text' in the header; available: text;label; the file may need delimiter: \";\"",
    ),
    (
        {"type": "csv", "file": "a.csv", "fields": {"text": 1}, "header": False},
        {"a.csv": b"fine\tfor\n"},
        'a.csv:1: 1 columns, but column 1 is selected (counted from 0); the file may need delimiter: "\\t"',
    ),
    (
        {"type": "csv", "file": "a.csv", "fields": {"text": "txt"}},
        {"a.csv": b"text,label\nfine,for\n"},
        "a.csv:1: no column 'txt' in the header; available: text, label. Did you mean 'text'?",
    ),
    (
        {"type": "parallel_tsv", "file": "a.tsv"},
        {"a.tsv": b"a,b\n"},
        "a.tsv:1: 1 columns, but column 1 is selected (columns are counted from 0 and separated by tabs)",
    ),
    (
        {"type": "json_lines", "file": "a.jsonl", "fields": {"text": "content"}},
        {"a.jsonl": b'{"contents": "fine"}\n'},
        "a.jsonl:1: no field 'content'; available: contents. Did you mean 'contents'?",
    ),
    (
        {"type": "json_lines", "file": "a.jsonl", "fields": {"text": "text"}},
        {"a.jsonl": b'{"text": "fine"}\n' * 9 + b'{"text": fine}\n'},
        "a.jsonl:10: not a JSON value (column 10: Expecting value)",
    ),
    (
        {"type": "text", "files": ["a.txt"]},
        {"a.txt": "für\n".encode("latin-1")},
        "a.txt:1: byte fc cannot be decoded as utf-8; set the file's encoding (encoding: latin-1?)",
    ),
    ({"type": "text", "files": ["a.txt"]}, {"a.txt": b"\n"}, "a.txt: the file has only blank lines"),
    (
        {"type": "parquet", "file": "a.parquet", "fields": {"text": "text"}},
        {"a.parquet": b"PAR1 and no end"},
        "a.parquet: not a Parquet file: ",
    ),
    (
        {"type": "labelled_text", "file": "a.txt", "labels": "b.txt"},
        {"a.txt": b"fine\n" * 3, "b.txt": b"for\n" * 2},
        "b.txt has 2; parallel files must have equal line counts",
    ),
    (
        {"type": "labelled_text", "file": "a.txt", "labels": "b.txt"},
        {"a.txt": b"fine\n" * 3, "b.txt": b"for\n" * 2**19},
        "b.txt has 524288; parallel files must have equal line counts",
    ),
]


@looped(("train", "written", "message"), FAULTS)
def test_check_finds_what_train_would_find(train: dict[str, Any], written: dict[str, bytes], message: str) -> None:
    if train["type"] == "parquet":
        pytest.importorskip("pyarrow")
    for name, data in written.items():
        Path(name).write_bytes(data)
    result = check(train, objective="completion" if train["type"] == "parallel_tsv" else "causal_lm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mine.yaml:5:5: data.train: ")
    assert message in result.stderr


def npy(*shape: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(shape, np.float32))
    return file.getvalue()


PATCHES = {"type": "patches", "size": 4, "channels": 1}


@looped(
    ("embedding", "file", "content", "message"),
    [
        ("features", "x.npy", npy(20, 0, 8), "x.npy: contains no example, or empty ones (shape [20, 0, 8])"),
        (
            {"type": "features", "d_input": 8},
            "x.npy",
            npy(3, 5, 7),
            "x.npy: row 1: the model reads vectors [time 8], got shape [5, 7]",
        ),
        ("features", "x.npy", npy(3, 5, 8), None),
        (PATCHES, "x.npy", npy(3, 1, 1, 1), "x.npy: row 1: patches of 4 x 4 do not tile an image of 1 x 1"),
        (PATCHES, "x.npy", npy(3, 9, 8), "x.npy: row 1: patches of 4 x 4 do not tile an image of 9 x 8"),
        (PATCHES, "x.npy", npy(3, 8, 8, 3), "x.npy: row 1: images must have the shape [height width 1]"),
        ("tokens", "v.txt", b"a 1 2 3\n", "v.txt:1: 3 numbers after 'a', but the token table has width 8"),
        ("tokens", "v.txt", b"a 1 2 3 4 5 6 7 1e300\n", "v.txt:1: the vector of 'a' is not finite in float32"),
        ("tokens", "v.bin", b"2 8\nab", "v.bin:1: 2 vectors of width 8 need at least 70 bytes, but the file has 6"),
        ("tokens", "v.txt", None, "v.txt: is not a regular file"),
        ("tokens", "v.txt", b"2 8\na" + b" 1" * 8 + b"\nb" + b" 2" * 8, None),
    ],
)
def test_check_opens_vectors(embedding: Any, file: str, content: bytes | None, message: str | None) -> None:
    Path(file).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(file)
    else:
        Path(file).write_bytes(content)
    recipe: dict[str, Any] = {"tfkit": 1, "model": MODEL | {"embedding": embedding}, "objective": "causal_lm"}
    Path("labels").write_text("a\nb\nc\n")
    if embedding == "tokens":
        Path("text").write_text("a b\n")
        recipe["data"] = {"tokenizer": "character", "train": {"type": "text", "files": "text"}}
        recipe["model"]["embedding"] = {"type": "tokens", "vectors": file}
    else:
        recipe["model"] |= {"type": "encoder", "head": {"type": "classifier", "num_classes": "labels"}}
        recipe["model"].pop("vocab_size")
        if embedding == PATCHES:
            recipe["model"].pop("max_length")
            recipe["model"]["position"] = "none"
        recipe |= {"objective": "classification", "data": {"train": {"type": "npy", "file": file, "labels": "labels"}}}
    result = check_recipe(recipe)
    assert result.exit_code == (0 if message is None else 2) and (message or "") in result.stderr, result.output


def test_a_missing_file_is_a_fault() -> None:
    Path("texts.txt").write_text("fine\n")
    Path("link.txt").symlink_to("nowhere")
    here, near = Path.cwd(), "Did you mean"
    for name, message, guess in (
        (["text.txt"], "data.train.files[0]: no such file", f"{near} '{here}/texts.txt'?"),
        ("link.txt", f"a link to a missing file: {here}/link.txt; to use another one: --set", ""),
        ("*.txt", f"no such file: {here}/*.txt; patterns are not expanded, so write each name\n", ""),
    ):
        result = check({"type": "text", "files": name})
        assert result.exit_code == 2 and message in result.stderr
        assert guess in result.stderr and (near in result.stderr) == bool(guess)


def test_a_missing_file_of_a_shipped_task_is_a_warning_until_it_is_ones_own() -> None:
    shipped = typed("check", "tinyshakespeare")
    assert shipped.exit_code == 0 and "warning: data.train.files: no such file" in shipped.stderr
    own = typed("check", "tinyshakespeare", "--set", "data.train.files=mine.txt")
    assert own.exit_code == 2 and own.stderr.count("no such file") == 1
    assert "--set data.train.files=mine.txt: data.train.files: no such file" in own.stderr


def test_all_faults_at_once() -> None:
    Path("a.txt").write_bytes(b"\xff\n")
    Path("b.txt").touch()
    result = check({"type": "text", "files": "a.txt"}, "--set", "data.valid={type: text, files: b.txt}")
    places = [line.partition(": ")[0] for line in result.stderr.splitlines()]
    assert places == ["--set data.valid={type", "mine.yaml:5:5"]


# --- what is shown


def test_check_shows_two_examples_of_each_split() -> None:
    rows = [{"source": f"zeile {n}", "target": "line\n\x1b[31m" + "long " * 99} for n in range(20)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {"type": "json_lines", "file": "a.jsonl", "fields": PAIRS}
    result = check(train, "--set", "data.valid={type: copying, count: 5}", objective="completion", width=60)
    assert result.exit_code == 0, result.stderr
    head, *shown = result.stdout.splitlines()
    assert head.startswith("mine.yaml: ok (decoder, ")
    assert shown[:2] == [
        '  train: source "zeile 0"  target "line\\n\\u001b[31mlong l...',
        '  train: source "zeile 1"  target "line\\n\\u001b[31mlong l...',
    ]
    assert [line.split()[0] for line in shown] == ["train:", "train:", "valid:", "valid:"]
    assert all(len(line) <= 60 for line in shown)


def test_wide_characters_count_twice() -> None:
    Path("a.txt").write_text("漢字" * 200 + "\n", encoding="utf-8")
    shown = check({"type": "text", "files": "a.txt"}, width=50).stdout.splitlines()[1]
    assert 45 <= cell_len(shown) <= 50


def test_what_is_expensive_to_begin_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.data.phrases.split", None)
    result = typed("check", "translate-numbers")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)


# --- only the beginning is read

LINES = {
    "text": "a text\n",
    "labelled_text": "label text\n",
    "parallel_text": "a text\n",
    "parallel_tsv": "a\tb\n",
    "tagged_text": "a b\n",
    "json_lines": '{"text": "b"}\n',
    "csv": "a,b\n",
    "chat": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    "fasta": ">a b=c\nACGT\nAC\n",
    "conllu": "1\ta\tb\tc\td\te\tf\tg\th\ti\n\n",
}


@looped("kind", LINES)
def test_ten_gigabytes_are_not_read(kind: str) -> None:
    with open("huge", "w") as file:
        file.write(LINES[kind] * 2**18)
        file.truncate(10**10)  # takes no room on the disk
    options = CORPORA[kind]("huge")
    assert len(corpus(kind, **options).first(10)) == 10
    assert corpus(kind, **options, limit=3).first(10) == corpus(kind, **options).first(3)


def test_every_corpus_of_text_files_is_bounded() -> None:
    read = {name for name in REGISTRY.names("corpus") if "encoding" in REGISTRY.get("corpus", name).Config.model_fields}
    assert read == set(LINES)


def test_a_parquet_file_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": [f"text {n}" for n in range(100)]}), "a.parquet")
    read = corpus("parquet", file="a.parquet", fields={"text": "text"})
    monkeypatch.setattr("tfkit.data.corpus.records.read_bytes", None)
    assert read.first(2) == [{"text": "text 0"}, {"text": "text 1"}]


def test_a_record_longer_than_the_beginning_is_read_to_its_end() -> None:
    Path("a.csv").write_text('text,label\n"' + "long\n" * 2**19 + '",for\n' + "short,for\n" * 10)
    assert len(corpus("csv", file="a.csv", fields={"text": "text"}).first(10)) == 10


@looped("encoding", ["utf-8", "utf-16", "latin-1", "shift_jis"])
def test_no_character_is_cut_in_two(encoding: str) -> None:
    text = "für\n" if encoding == "latin-1" else "漢字\n"
    Path("a.txt").write_bytes((text * 100).encode(encoding))
    for most in range(20, 40):
        with lines.beginnings(most) as bound:
            assert set(lines.Lines("a.txt", encoding)) == {text[:-1]}
            assert bound.is_cut


def test_two_files_are_compared_as_far_as_they_are_read() -> None:
    Path("short").write_text("a\n" * 5)
    Path("long").write_text("b\n" * 100)
    with lines.beginnings(20):
        assert list(lines.read_pairs("long", "long")) == [("b", "b")] * 10
        with pytest.raises(DataError, match="short has 5 lines, long has more than 10; parallel files must have"):
            list(lines.read_pairs("short", "long"))
    with lines.beginnings(8):
        assert list(lines.read_pairs("short", "long")) == [("a", "b")] * 4


def test_one_line_without_an_end_is_shown() -> None:
    Path("text8").write_text("one line " * 2**18)
    (example,) = corpus("text", files=["text8"]).first(10)
    assert example["text"].startswith("one line one line")


def test_a_conversation_is_shown_by_turns_and_rendered_once() -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "[{a"}]
    Path("chat.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    shown = check({"type": "chat", "file": "chat.jsonl"}, objective="chat")
    assert shown.output.splitlines()[1:] == ['  train: user "hi"', '  train: assistant "[{a"'], shown.output
    refused = check({"type": "chat", "file": "chat.jsonl"}, "--set", "objective={type: chat, template: x}")
    assert refused.exit_code == 2 and "chat.jsonl:1: the chat template ends a reply without" in refused.output


# --- text outside the vocabulary


@pytest.mark.full
def test_text_outside_the_vocabulary_of_the_training_split_is_named(caplog: pytest.LogCaptureFixture) -> None:
    Path("t.fa").write_text("; made by hand\n>a\nACDE\nFG\n>b\nAC\n")
    Path("v.fa").write_text(">a\nACD\n>b x=y\nA\nZCX\n\n>c\nB\n")
    Path("t.csv").write_text("codes\n25 18 50\n7 0\n")
    Path("v.csv").write_text("codes\n25 18\n7 51\n")
    codes = {"type": "csv", "fields": {"text": "codes"}}
    cases: list[tuple[Any, dict[str, Any], dict[str, Any], int, str]] = [
        ("character", {"type": "fasta", "file": "t.fa"}, {"type": "fasta", "file": "v.fa"}, 0,
         "v.fa:3: not in the vocabulary of the training split: 'Z', 'X'; unknown tokens in 2 examples"),
        ("character", {"type": "fasta", "file": "t.fa"}, {"type": "fasta", "file": "v.fa", "limit": 1}, 0, ""),
        ({"type": "character", "special_tokens": {"unknown": "none"}},
         {"type": "fasta", "file": "t.fa"}, {"type": "fasta", "file": "v.fa"}, 2,
         "v.fa:3: 'Z' is not in the vocabulary, which has no unknown token"),
        ("ids", {**codes, "file": "t.csv"}, {**codes, "file": "v.csv"}, 2, "v.csv:3: '51' is not an id; ids are whole"),
        ({"type": "ids", "vocab_size": 40}, {**codes, "file": "t.csv"}, {**codes, "file": "t.csv", "skip": 1}, 2,
         "t.csv:2: '50' is not an id; ids are whole numbers from 0 to 39"),
        ("word", {**codes, "file": "t.csv"}, {**codes, "file": "v.csv"}, 0, ""),
        ("character", {**codes, "file": "t.csv"}, {"type": "docstrings", "limit": 2}, 0, ""),
    ]  # fmt: skip
    for tokenizer, train, valid, code, message in cases:
        data = {"tokenizer": tokenizer, "train": train, "valid": valid}
        result = check_recipe({"tfkit": 1, "data": data, "model": MODEL, "objective": "causal_lm"})
        assert result.exit_code == code, result.stderr
        lines = [*result.stderr.splitlines(), *caplog.messages]
        said = [line for line in lines if "vocabulary" in line or "is not an id" in line]
        caplog.clear()
        assert len(said) == bool(message) and all(message in line for line in said), result.stderr
