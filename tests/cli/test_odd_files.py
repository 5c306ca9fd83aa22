"""What is no ordinary file, nested too deeply or no text, wherever a command takes a file: told at once, in words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.small import RECIPE
from tfkit.cli.texts import LONGEST
from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Capo, Docstrings, Phrases, Probe, VectorCorpus, base, lines

from ..sampling import each, looped
from .typed import refused, typed

DEEP = 100_000
CORPORA: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda file: {"files": [file]},
    "labelled_text": lambda file: {"file": file},
    "tagged_text": lambda file: {"file": file, "tags": file},
    "parallel_text": lambda file: {"source": file, "target": file},
    "parallel_tsv": lambda file: {"file": file},
    "json_lines": lambda file: {"file": file, "fields": {"text": "text"}},
    "csv": lambda file: {"file": file, "fields": {"text": 0}, "header": False},
    "fasta": lambda file: {"file": file},
    "arrays": lambda file: {"file": file},
    "parquet": lambda file: {"file": file, "fields": {"text": "text"}},
    "conllu": lambda file: {"file": file},
    "chat": lambda file: {"file": file},
    "datasets": lambda file: {"folder": folder_of(file), "fields": {"text": "text"}},
    "mixture": lambda file: {"of": [{"corpus": {"type": "text", "files": file}}] * 2},
}


def folder_of(file: str) -> str:
    """Make a folder of data in the working directory, whose only file is that one."""
    Path("rows").mkdir()
    Path("rows/rows.parquet").symlink_to(file)
    return "rows"


def recipe(model: Any = (), **data: Any) -> dict[str, Any]:
    corpus = {"tokenizer": "character", "train": {"type": "text", "files": [__file__], "limit": 8}}
    return {**RECIPE, "model": {**RECIPE["model"], **dict(model)}, "data": corpus | data}


@pytest.fixture(params=["pipe", "/dev/zero"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file without an end, or without a beginning: nobody writes into the pipe."""
    if request.param != "pipe":
        return Path(request.param)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def written(tmp_path: Path, data: Any) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


# --- no ordinary file


def test_no_command_reads_what_is_no_ordinary_file(odd: Path, tmp_path: Path, writer: Path) -> None:
    link, code = tmp_path / "odd.yaml", tmp_path / "odd.py"
    for name in (link, code):
        name.symlink_to(odd)
    train = ("train", "--out", tmp_path / "a")
    cases: list[tuple[tuple[object, ...], Any]] = [
        *(
            (line, None)
            for line in (("check", link), ("show", link), ("explain", link, "model"), ("diff", "gpt2", link))
        ),
        (("new", tmp_path / "mine", "--from", link), None),
        (("check",), {"tfkit": 1, "extends": "odd.yaml"}),
        (("check", "gpt2", "--import", code), None),
        (("parts", "--verify", code), None),
        (("check", "--trust"), recipe() | {"imports": ["odd.py"]}),
        (train, recipe(tokenizer={"type": "file", "path": str(odd)})),
        (train, recipe({"embedding": {"type": "tokens", "vectors": str(odd)}})),
        (("embed", writer, odd), None),
    ]

    def check(line: tuple[object, ...], data: Any) -> None:
        words = line if data is None else (line[0], written(tmp_path, data), *line[1:])
        result = typed(*words)
        assert result.exit_code == 2 and "not a regular file" in result.stderr, result.output

    each(cases, check)


def test_no_corpus_reads_what_is_no_ordinary_file(odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def check(name: str) -> None:
        config = REGISTRY.get("corpus", name).Config.model_validate(CORPORA[name](str(odd)))
        (file,) = set(config.files_read())
        assert os.path.samefile(file, odd)
        for reads in (lambda part: part.examples(), lambda part: part.first(1)):
            with pytest.raises(DataError, match=f"^{file}: is not a regular file"):
                reads(config.build())

    each(CORPORA, check)
    made_here = {
        name
        for name in REGISTRY.names("corpus")
        if issubclass(REGISTRY.get("corpus", name), (Probe, Phrases, Docstrings, Capo, VectorCorpus))
    }
    assert set(REGISTRY.names("corpus")) - set(CORPORA) == made_here


# --- too deep, too long, no text


def test_nested_too_deeply(tmp_path: Path) -> None:
    file = tmp_path / "deep"
    file.write_text("[" * DEEP + "]" * DEEP)
    assert "deep" in refused("check", file)
    tokenizer = recipe(tokenizer={"type": "file", "path": str(file)})
    assert "deep" in refused("train", written(tmp_path, tokenizer), "--out", tmp_path / "a")


@looped("row", [{"text": "a \ud800 b"}, {"text": "\udcff"}])
def test_half_a_character_in_a_corpus(row: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "half.jsonl"
    file.write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps(row) + "\n")
    half = recipe(train={"type": "json_lines", "file": str(file), "fields": {"text": "text"}})
    said = refused("train", written(tmp_path, half), "--out", tmp_path / "a")
    assert "half.jsonl:2: text contains a lone surrogate (half of a character, U+D" in said


def test_half_a_character_in_a_prompt_or_a_recipe(writer: Path, tmp_path: Path) -> None:
    """As Python has bytes of the command line that are no UTF-8."""
    for form in ([], ["--stream"], ["--jsonl"]):
        said = refused("generate", writer, *form, "fine", "not \udcff")
        assert "tfkit: prompt 2 cannot be read: the text contains a lone surrogate" in said
    file = tmp_path / "half.yaml"
    file.write_text('tfkit: 1\nmodel: {type: "\\ud800"}\n')
    assert "half.yaml:2:18: invalid escape" in refused("check", file)
    assert "--set model.type=\\udcff: " in refused("check", "gpt2", "--set", "model.type=\udcff")
    for name in ("\udcff", "no\udcff.yaml", "a\udcff/b"):
        assert "\\udcff" in refused("check", name)


@looped("line", [["generate"], ["embed", "-"]])
def test_a_line_without_an_end(line: list[str], writer: Path) -> None:
    said = refused(line[0], writer, *line[1:], stdin=b"one\n" + b"a" * (LONGEST + 1))
    assert said == f"tfkit: standard input, line 2: longer than {LONGEST:,} bytes\n"


# --- more than the memory holds


def examples(**options: Any) -> list[Any]:
    return REGISTRY.get("corpus", "parquet").Config.model_validate(options).build().examples()


@pytest.fixture
def million(tmp_path: Path) -> str:
    """A small file of a million rows."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = str(tmp_path / "rows.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"] * 1_000_000}), file)
    assert os.path.getsize(file) < 10_000
    return file


def test_rows_that_memory_cannot_hold_are_refused(million: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "free_memory", lambda: 2**27)
    with pytest.raises(DataError, match=r"rows.parquet: 1,000,000 examples need at least 238\.4 MiB, .* set limit"):
        examples(file=million, fields={"text": "text"})
    assert examples(file=million, fields={"text": "text"}, limit=3) == [{"text": "a"}] * 3
    left = iter([2**40, 2**38, 2**36])
    monkeypatch.setattr(base, "free_memory", lambda: next(left))
    monkeypatch.setattr(base, "SELDOM", 100)
    with pytest.raises(DataError, match=r"after 200 examples, only 64\.0 GiB of memory are left; set limit"):
        examples(file=million, fields={"text": "text"})


def test_how_far_a_long_corpus_is_read_is_logged(
    million: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(base.time, "monotonic", lambda: 11.0 * next(clock))
    with caplog.at_level("INFO", "tfkit"):
        examples(file=million, fields={"text": "text"}, limit=2500)
    told = [record.getMessage().split(": ")[1] for record in caplog.records]
    assert told == ["1,000 examples read of 2,500", "2,000 examples read of 2,500"]


def test_a_file_larger_than_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sparse"
    with open(file, "wb") as stream:
        stream.truncate(2**31)
    monkeypatch.setattr(lines, "free_memory", lambda: 2**32)
    with pytest.raises(DataError, match=r"sparse: is 2\.0 GiB large, .* only 4\.0 GiB are free"):
        lines.read_bytes(file)


@looped("place", [4, 0.99])
def test_a_damaged_parquet_file_is_told(place: float, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    texts = [f"text {number * 7919}" for number in range(500)]
    parquet.write_table(pyarrow.table({"text": texts}), file, use_dictionary=False, compression="zstd")
    data = bytearray(file.read_bytes())
    start = int(place if place > 1 else place * len(data))
    data[start : start + 12] = b"\xff" * 12
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"rows\.parquet: not a Parquet file: "):
        examples(file=str(file), fields={"text": "text"})


def test_a_corpus_of_ones_own_gives_texts() -> None:
    with pytest.raises(DataError, match="mine: example 2: text must be a string, got int"):
        list(base.watched(iter([{"text": "fine"}, {"text": 3}]), "mine", None))
