"""The texts of `generate`, `predict` and `embed`: one reader, whose faults have a file and a line, and one writer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfkit
from tfkit.cli.texts import LONGEST, TextOptions
from tfkit.core.errors import TfkitError

from ..sampling import looped
from .typed import refused
from .typed import typed as command

RECORDS = '{"id": "a", "text": "The "}\n{"id": 7, "text": "fox"}\n'


@pytest.fixture
def run(writer: Path) -> Path:
    return writer


def written(folder: Path, name: str, text: str | bytes) -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def values(file: Path, *fields: str) -> list[Any]:
    given = TextOptions(file=str(file), fields=fields)
    given.check(most_fields=2)
    return [text.values if len(text.values) > 1 else text.values[0] for text in given.all()]


@looped("name", ["generate", "predict"])
def test_a_text_that_is_a_file_is_refused(name: str, tmp_path: Path, run: Path) -> None:
    lines, records = written(tmp_path, "in.txt", "The \n"), written(tmp_path, "in.jsonl", RECORDS)
    assert f"'{lines}' is a file; read it with --input {lines}" in refused(name, run, "The ", lines)
    assert f"read it with --input {records} --field NAME" in refused(name, run, records)
    assert command("generate", run, tmp_path.name).exit_code == 0


def test_files_are_answered_line_by_line(tmp_path: Path, run: Path) -> None:
    file, out = written(tmp_path, "in.txt", b"\xef\xbb\xbfThe \r\nfox"), tmp_path / "out.txt"
    assert values(file) == ["The ", "fox"]
    expected = command("generate", run, "The ", "fox").stdout
    assert command("generate", run, "--input", file).stdout == expected
    assert command("generate", run, "--input", "-", stdin="The \nfox\n").stdout == expected
    assert command("generate", run, "--input", file, "--output", "-").stdout == expected
    assert command("generate", run, "--input", file, "--output", out).stdout == "" and out.read_text() == expected
    assert command("generate", run, "The ", "fox", "--output", out).stdout == "" and out.read_text() == expected


def test_answers_replace_files_alone(tmp_path: Path, run: Path) -> None:
    """A device in the place of the file stays what it is, and so does a link to the file."""
    os.mkfifo(tmp_path / "device")
    written(tmp_path, "kept", b"old")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("generate", "embed"):
        for bad in ("", "device", ".", "\0"):
            assert "cannot be written" in refused(name, run, "--input", run / "recipe.yaml", "--output", tmp_path / bad)
    assert command("generate", run, "fox", "--output", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "kept").read_bytes() != b"old"
    assert (tmp_path / "device").is_fifo()


def test_records_keep_their_ids(tmp_path: Path, run: Path) -> None:
    file, out = written(tmp_path, "in.jsonl", RECORDS), tmp_path / "out.jsonl"
    line = ("--input", file, "--field", "text", "--output", out)
    texts = tfkit.load_run(run).generate(["The ", "fox"])
    assert command("generate", run, *line).output == ""
    expected = [{"id": id_, "text": text} for id_, text in zip(("a", 7), texts, strict=True)]
    assert [json.loads(one) for one in out.read_text().splitlines()] == expected
    command("generate", run, *line, "--jsonl", "--num-beams", 2, "--n-best", 2)
    found = [json.loads(one) for one in out.read_text().splitlines()]
    assert [one["id"] for one in found] == ["a", "a", 7, 7] and found[0]["prompt"] == "The "
    command("embed", run, *line)
    vectors = [json.loads(one) for one in out.read_text().splitlines()]
    assert [one["id"] for one in vectors] == ["a", 7]
    np.testing.assert_allclose([one["vector"] for one in vectors], tfkit.load_run(run).embed(["The ", "fox"]), 1e-5)
    command("embed", run, file, "--field", "text", "--out", tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), [one["vector"] for one in vectors], 1e-5)
    unnamed = written(tmp_path, "b.jsonl", '{"q": {"en": "The "}}\n')
    assert json.loads(command("generate", run, "--input", unnamed, "--field", "q.en").stdout)["id"] == 1


ID = '{"id": 1, "text": "a"}\n'
FAULTS: list[tuple[list[str], str | bytes, str]] = [
    ([], "", ": contains no text"),
    ([], "a\n\nb\n", ":2: empty line; remove it"),
    ([], "a\n \n", ":2: empty line; remove it"),
    ([], b"a\n\xff\n", ":2: not UTF-8 text (invalid start byte)"),
    ([], "ab\n".encode("utf-16-le"), ":1: not UTF-8 text (null characters)"),
    ([], b"a\n" + b"a" * (LONGEST + 1), f":2: longer than {LONGEST:,} bytes"),
    (["text"], f"{ID}\n", ":2: empty line; remove it"),
    (["text"], f"{ID}{{text: a}}\n", ":2: not a JSON value (column 2: Expecting property name"),
    (["text"], ID + "[" * 100_000, ":2: not a JSON value (nested too deeply)"),
    (["text"], f'{ID}"text"\n', ":2: no field 'text'; found a text; expected a mapping"),
    (["text"], f'{ID}{{"id": 2, "txt": "a"}}\n', ":2: no field 'text'; available: id, txt. Did you"),
    (["text"], f'{ID}{{"id": 2, "text": ["a"]}}\n', ":2: field 'text' is a list; expected text or a number"),
    (["text"], f'{ID}{{"id": 2, "text": " "}}\n', ":2: text is empty"),
    (["text"], f'{ID}{{"id": 2, "text": "\\ud800"}}\n', ":2: text contains a lone surrogate"),
    (["text"], f'{ID}{{"text": "a"}}\n', ":2: the record has no id, but others have"),
    (["text"], '{"id": NaN, "text": "a"}\n', ":1: id must be a text or a number, got NaN"),
    (["text"], f'{ID}{{"id": [2], "text": "a"}}\n', ":2: id must be a text or a number, got [2]"),
]


@looped(("fields", "text", "expected"), FAULTS)
def test_a_fault_has_its_place(fields: list[str], text: str | bytes, expected: str, tmp_path: Path) -> None:
    file = written(tmp_path, "in", text)
    with pytest.raises(TfkitError) as caught:
        values(file, *fields)
    assert str(caught.value).startswith(f"{file}{expected}")


def test_a_fault_is_found_before_anything_is_written(tmp_path: Path, run: Path) -> None:
    file = written(tmp_path, "in.txt", "The \n" * 40 + "\n")
    assert f"{file}:41: empty line" in refused("generate", run, "--input", file)
    assert f"{file}:41: empty line" in refused("embed", run, file)
    long = written(tmp_path, "long", "a\n" + "a" * 99)
    assert f"{long}:2: the prompt has 99 tokens" in refused("generate", run, "--input", long)
    assert "no such file" in refused("generate", run, "--input", tmp_path / "none", "--output", tmp_path / "o")
    assert not (tmp_path / "o").exists()


@looped("name", ["recipe.yaml", "run.json", "README.md", "checkpoints/step-1", "link"])
def test_an_output_that_is_a_file_of_a_run_is_refused(tmp_path: Path, run: Path, name: str) -> None:
    before = (run / "recipe.yaml").read_bytes()
    output = run / name
    if name == "link":
        output = tmp_path / name
        output.symlink_to(run / "recipe.yaml")
    assert f"--out {output} would overwrite a file of a run; choose another" in (
        refused("generate", run, "The", "--output", output)
    )
    assert (run / "recipe.yaml").read_bytes() == before


def test_options_that_do_not_fit(tmp_path: Path, run: Path) -> None:
    file = written(tmp_path, "in.jsonl", RECORDS)
    read = ("generate", run, "--input", file)
    two = ("--field", "text", "--field", "id")
    cases: list[tuple[tuple[object, ...], str]] = [
        (read, "contains JSON lines; name the text field with --field NAME; the first record has id, text"),
        (("generate", run, "The", "--input", "a"), "--input a and TEXT cannot be combined"),
        (("generate", run, "The", "--field", "text"), "--field names a column or key of a file"),
        ((*read, "--output", file), "would overwrite the input file"),
        ((*read, *two), "reads one text; use --field once"),
        ((*read, *two[:2], "--output", "o", "--stream"), "remove --field and --out"),
        (("embed", run, "a", "--input", "b"), "FILE and --input are equivalent"),
        (("embed", run), "missing input file: use --input FILE"),
    ]
    for words, message in cases:
        assert message in refused(*words)
    assert values(file, "text", "id") == [("The ", "a"), ("fox", "7")]
