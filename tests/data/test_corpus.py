"""Corpora: what real files hold, and what is said of those that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus.drawn import summaries

from ..sampling import looped

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file and gives its path."""

    def make(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return make


def read(name: str, **options: Any) -> list[dict[str, str]]:
    """The examples of the corpus of that name."""
    corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    examples: list[dict[str, str]] = corpus.examples()
    assert all(tuple(example) == corpus.fields for example in examples)
    return examples


def refused(name: str, **options: Any) -> str:
    """What is said of a corpus that cannot be read."""
    with pytest.raises(DataError) as caught:
        read(name, **options)
    return str(caught.value)


def texts(name: str, **options: Any) -> list[str]:
    """The texts of the corpus of that name."""
    return [example["text"] for example in read(name, **options)]


# lines and bytes


@looped(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\nc\r\n", ["a", "b", "c"]),
        ("a\r\nb\r", ["a", "b"]),
        ("a\u00a0b\nc\u2028d\x0ce\x85f\n", ["a\u00a0b", "c\u2028d\x0ce\x85f"]),
        ("\ufeffa\nb\ufeff\n", ["a", "b\ufeff"]),
        (" a \n", [" a "]),
        ("a\n\n \nb\n\n", ["a", "b"]),
    ],
)
def test_lines_end_at_line_feeds_only(write: Write, content: str, lines: list[str]) -> None:
    assert texts("text", files=write("x.txt", content)) == lines


def test_other_encodings(write: Write) -> None:
    assert texts("text", files=write("x.txt", "läuft\n".encode("latin-1")), encoding="latin-1") == ["läuft"]
    assert texts("text", files=write("y.txt", "läuft\n".encode("utf-16")), encoding="utf-16") == ["läuft"]


def test_undecodable_bytes_are_named(write: Write) -> None:
    message = refused("text", files=write("x.txt", b"one\ntwo\nl\xe4uft\n"))
    assert "x.txt:3: byte e4 cannot be decoded as utf-8" in message
    assert "encoding: latin-1" in message


@looped("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@looped("text", ["hello\n" * 9, "grüße\n"])
def test_a_file_of_wide_characters_is_told_its_encoding(write: Write, encoding: str, text: str) -> None:
    file = write("x.txt", text.encode(encoding))
    for options in ({}, {"unit": "document"}, *([{"encoding": "latin-1"}] if encoding[6:] else [])):
        assert refused("text", files=file, **options).endswith(f"set encoding: {encoding}")
    assert texts("text", files=file, encoding=encoding) == text.splitlines()


def test_fasta_is_no_text(write: Write) -> None:
    for content in (">sp|P1 a protein\nMKVLAT*\n", ">1\nacgtn\nac\n", "\n>1\nacgtACGT\n"):
        assert "x.fa: is FASTA" in refused("text", files=write("x.fa", content), unit="document")
    for content in (">quoted\nAn answer\n", "> quoted\nYES\n"):
        assert texts("text", files=write("x.txt", content)) == content.splitlines()


def test_unusable_files_are_named(write: Write, tmp_path: Path) -> None:
    assert "gone.txt: no such file" in refused("text", files=str(tmp_path / "gone.txt"))
    assert "is a folder" in refused("text", files=str(tmp_path))
    assert "empty.txt: the file is empty" in refused("text", files=write("empty.txt", ""))
    assert "blank.txt: the file has only blank lines" in refused("text", files=write("blank.txt", "\ufeff\n \r\n"))
    assert "cannot be read" in refused("text", files="a\x00b")


@looped("encoding", ["utf8x", "rot13", "hex", "", "a\0b"])
def test_what_is_no_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(ValidationError, match="is not a text encoding"):
        read("text", files="x", encoding=encoding)


# text


def test_units_of_text(write: Write) -> None:
    path = write("x.txt", "a\r\nb\n\n \nc\n")
    assert texts("text", files=path) == ["a", "b", "c"]
    assert texts("text", files=path, unit="paragraph") == ["a\nb", "c"]
    assert texts("text", files=path, unit="document") == ["a\nb\n\n \nc\n"]
    assert texts("text", files=[path, write("y.txt", "d")], unit="paragraph") == ["a\nb", "c", "d"]
    assert texts("text", files=path, limit=2) == ["a", "b"]


@looped("options", [{}, {"files": []}, {"files": 3}, {"files": "x", "unit": "word"}, {"file": "x"}])
def test_wrong_options_of_text_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read("text", **options)


# pairs


def test_parallel_text(write: Write) -> None:
    source, target = write("a.en", "one\r\ntwo three\n"), write("a.de", "eins\nzwei\u00a0drei")
    pairs = [{"source": "one", "target": "eins"}, {"source": "two three", "target": "zwei\u00a0drei"}]
    assert read("parallel_text", source=source, target=target) == pairs
    assert read("parallel_text", source=source, target=target, limit=1) == pairs[:1]


def test_parallel_text_counts_lines(write: Write) -> None:
    source, target = write("a.en", "one\ntwo\n"), write("a.de", "eins\nzwei\n\n")
    message = refused("parallel_text", source=source, target=target)
    assert f"{source} has 2 lines, {target} has 3" in message


def test_empty_sides_are_refused_or_left_out(write: Write) -> None:
    source, target = write("a.en", "one\n\nthree\n"), write("a.de", "eins\nzwei\n \n")
    assert f"{source}:2: source is empty" in refused("parallel_text", source=source, target=target)
    assert read("parallel_text", source=source, target=target, skip_empty=True) == [{"source": "one", "target": "eins"}]
    nothing = write("b.en", "\n\nx\n")
    message = refused("parallel_text", source=nothing, target=write("b.de", "a\nb\n\n"), skip_empty=True)
    assert "contains no example" in message
    target = write("c.de", "eins\n\n")
    assert f"{target}:2: target is empty" in refused("parallel_text", source=write("c.en", "one\ntwo\n"), target=target)


def test_parallel_tsv(write: Write) -> None:
    path = write("x.tsv", 'id\ten\tde\n1\t"one\teins\r\n2\ttwo\tzwei')
    pairs = [{"source": '"one', "target": "eins"}, {"source": "two", "target": "zwei"}]
    assert read("parallel_tsv", file=path, source_column=1, target_column=2, header=True) == pairs
    swapped = read("parallel_tsv", file=path, source_column=2, target_column=1, header=True, limit=1)
    assert swapped == [{"source": "eins", "target": '"one'}]


def test_tsv_with_wrong_columns_is_named(write: Write) -> None:
    message = refused("parallel_tsv", file=write("x.tsv", "a\tb\nc\n"))
    assert message.endswith("x.tsv:2: 1 columns, but the first line has 2")
    assert "x.tsv:2: 3 columns" in refused("parallel_tsv", file=write("x.tsv", "a\tb\nc\td\te\n"))
    assert "x.tsv:1: 2 columns, but column 5" in refused("parallel_tsv", file=write("x.tsv", "a\tb\n"), target_column=5)
    assert "x.tsv:2: 1 columns" in refused("parallel_tsv", file=write("x.tsv", "a\tb\n\nc\td\n"))
    assert len(read("parallel_tsv", file=write("x.tsv", "a\tb\n\nc\td\n"), skip_empty=True)) == 2
    assert "no example" in refused("parallel_tsv", file=write("x.tsv", "a\tb\n"), header=True)
    with pytest.raises(ValidationError, match="are both 1"):
        read("parallel_tsv", file="x", source_column=1)


# labels and tags


def test_labelled_text(write: Write) -> None:
    path = write("x.txt", "1 good\u00a0film\n0 bad  film \n")
    examples = [{"text": "good\u00a0film", "label": "1"}, {"text": "bad  film ", "label": "0"}]
    assert read("labelled_text", file=path) == examples
    tabs = "__label__1\tgood\u00a0film\t\n__label__0 bad\tfilm\n"
    assert read("labelled_text", file=write("t", tabs)) == [
        {"text": "good\u00a0film\t", "label": "__label__1"},
        {"text": "bad\tfilm", "label": "__label__0"},
    ]
    assert "t:1: has several labels" in refused("labelled_text", file=write("t", "__label__1 __label__2 film\n"))
    assert read("labelled_text", file=write("y", "a b\n"), labels=write("z", "X\r\n")) == [
        {"text": "a b", "label": "X"}
    ]
    assert "x:2: text is empty" in refused("labelled_text", file=write("x", "1 a\n1\n"))
    assert "z:1: label is empty" in refused("labelled_text", file=write("x", "a\nb\n"), labels=write("z", "\nX\n"))
    assert "has 1 lines" in refused("labelled_text", file=write("x", "a\n"), labels=write("z", "X\nY\n"))


def test_tagged_text(write: Write) -> None:
    file, tags = write("x", "play  a\u00a0b \n"), write("t", "O\tB-song \n")
    assert read("tagged_text", file=file, tags=tags) == [{"text": "play a\u00a0b", "tags": "O B-song"}]
    message = refused("tagged_text", file=write("x", "a\nb c\n"), tags=write("t", "O\nO\n"))
    assert "t:2: 1 tags" in message and "x:2 has 2 words" in message


CONLLU = """# text = We don't.
1\tWe\twe\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

1\t10 000\t10 000\tNUM\tCD\t_\t0\troot\t_\t_
"""


def test_conllu(write: Write) -> None:
    path = write("x.conllu", CONLLU)
    examples = [{"text": "We do n't", "tags": "PRON AUX PART"}, {"text": "10\u00a0000", "tags": "NUM"}]
    assert read("conllu", file=path) == examples
    assert read("conllu", file=path, column="xpos", limit=1)[0]["tags"] == "PRP VBP RB"
    assert "x.conllu:2: 2 columns" in refused("conllu", file=write("x.conllu", "# x\n1\tWe\n"))


def test_columns_of_words(write: Write) -> None:
    """Files of CoNLL-2003 and of other tasks: words first, any number of columns, separated by spaces or tabs."""
    path = write("x", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG \n# NN I-NP O\n\n# id = 1\nPeter NNP B-NP B-PER\r\n")
    examples = [{"text": "EU #", "tags": "B-ORG O"}, {"text": "Peter", "tags": "B-PER"}]
    assert read("conllu", file=path, column=3) == examples
    assert read("conllu", file=path, column=1, limit=1) == [{"text": "EU #", "tags": "NNP NN"}]
    assert read("conllu", file=write("y", "# 1\nNew York\tB\n"), column=1) == [{"text": "New\u00a0York", "tags": "B"}]
    assert "x:3: 4 columns, not 5" in refused("conllu", file=path, column=4)
    assert "x:2: 1 columns, not 2" in refused("conllu", file=write("x", "a B\nb\n"), column=1)
    assert "set column to an index for other files (CoNLL-2003: 3)" in refused("conllu", file=path)


# records


def test_json_lines(write: Write) -> None:
    path = write("x.jsonl", '{"translation": {"en": "a\\nb", "de": "ä"}}\r\n{"translation": {"de": "d", "en": "c"}}\n')
    pairs = [{"source": "a\nb", "target": "ä"}, {"source": "c", "target": "d"}]
    assert read("json_lines", file=path, fields={"source": "translation.en", "target": "translation.de"}) == pairs
    path = write("y.jsonl", '{"a.b": "x", "stars": 3, "good": true}\n')
    found = read("json_lines", file=path, fields={"text": "a.b", "label": "stars"})
    assert found == [{"text": "x", "label": "3"}]
    assert read("json_lines", file=path, fields={"text": "a.b", "label": "good"})[0]["label"] == "true"


@looped(
    ("line", "message"),
    [
        ('{"en": "a"', "x.jsonl:2: not a JSON value (column 11: "),
        ("[" * 100_000, "x.jsonl:2: not a JSON value"),
        ('{"eng": "a"}', "x.jsonl:2: no field 'en'; available: eng. Did you mean 'eng'?"),
        ("{}", "x.jsonl:2: no field 'en'; available: none"),
        ('["a"]', "x.jsonl:2: no field 'en'; found a list; expected a mapping"),
        ('{"en": null}', "x.jsonl:2: field 'en' is null; expected text or a number"),
        ('{"en": ["a"]}', "x.jsonl:2: field 'en' is a list"),
        ('{"en": " "}', "x.jsonl:2: text is empty"),
        *((line, "; write one object per line") for line in ("{", "[", '{"en": "a"},')),
        ('[{"en": "a"}]', "found a list; expected a mapping; write one object per line"),
        ('{"en": ["a", "b"]}', "expected text or a number (the first element is en.0)"),
    ],
)
def test_wrong_json_is_named(write: Write, line: str, message: str) -> None:
    path = write("x.jsonl", f'{{"en": "first"}}\n{line}\n')
    assert message in refused("json_lines", file=path, fields={"text": "en"})


def test_blank_lines_of_json_are_skipped_and_lists_have_elements(write: Write) -> None:
    path = write("x.jsonl", '\n{"en": ["a", "b"]}\n  \n{"en": []}\n')
    assert "x.jsonl:4: text is empty" in refused("json_lines", file=path, fields={"text": "en.0"})
    assert texts("json_lines", file=path, fields={"text": "en.0"}, skip_empty=True) == ["a"]
    assert texts("json_lines", file=path, fields={"text": "en.1"}, limit=1) == ["b"]
    assert "x.jsonl:4: no field 'en.1'; found a list" in refused("json_lines", file=path, fields={"text": "en.1"})


def test_csv(write: Write) -> None:
    path = write("x.csv", 'body,stars\r\n"one, two\r\nthree ""x""",5\nfour\u2028five,1')
    examples = [{"text": 'one, two\nthree "x"', "label": "5"}, {"text": "four\u2028five", "label": "1"}]
    assert read("csv", file=path, fields={"text": "body", "label": "stars"}) == examples
    assert read("csv", file=path, fields={"text": 0, "label": 1}) == examples
    path = write("y.csv", "a;b\nc;d\n")
    assert texts("csv", file=path, fields={"text": 1}, header=False, delimiter=";") == ["b", "d"]
    assert texts("csv", file=path, fields={"text": "a"}, delimiter=";", limit=1) == ["c"]
    assert texts("csv", file=write("z.csv", "a\n" + "x" * 200_000), fields={"text": "a"}) == ["x" * 200_000]


@looped(
    ("content", "message"),
    [
        ('text,label\n"a\nb",1\nc\n', "x.csv:4: 1 columns, but the first row has 2"),
        ("text,label\na,b,c\n", "x.csv:2: 3 columns"),
        ('text,label\na,1\n"open,2\nb,3\n', "x.csv:3: the row that starts here is not valid CSV"),
        ('text,label\n"a"b,2\n', "x.csv:2: the row that starts here is not valid CSV"),
        ("text,label\na\rb,2\n", "x.csv:2: the row that starts here is not valid CSV"),
        (
            "texts,label\na,1\n",
            "x.csv:1: no column 'text' in the header; available: texts, label. Did you mean",
        ),
        ("text,label\n\na,1\n", "x.csv:2: 0 columns"),
        ("text,label\n,1\n", "x.csv:2: text is empty"),
        ("text,label\n", "x.csv: contains no example"),
    ],
)
def test_wrong_csv_is_named(write: Write, content: str, message: str) -> None:
    assert message in refused("csv", file=write("x.csv", content), fields={"text": "text", "label": "label"})


def test_wrong_columns_of_csv_are_refused(write: Write) -> None:
    path = write("x.csv", "a,b\n")
    assert "2 columns, but column 2 is selected" in refused("csv", file=path, fields={"text": 2}, header=False)
    wrong: tuple[dict[str, Any], ...] = (
        {"fields": {}},
        {"fields": {"text": -1}},
        {"fields": {"text": "a"}, "header": False},
    )
    for options in wrong:
        with pytest.raises(ValidationError):
            read("csv", file=path, **options)
    for delimiter in ("", ";;", '"', "\n"):
        with pytest.raises(ValidationError):
            read("csv", file=path, fields={"text": 0}, delimiter=delimiter)


def test_parquet(tmp_path: Path, write: Write) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"pair": {"en": "a", "de": "ä"}, "stars": 3}, {"pair": {"en": "b", "de": None}, "stars": 4}]
    path = str(tmp_path / "x.parquet")
    finest = pyarrow.array([1, 2], pyarrow.timestamp("ns"))  # no Python value, and not read
    parquet.write_table(pyarrow.Table.from_pylist(rows).append_column("at", finest), path)
    assert read("parquet", file=path, fields={"text": "pair.en", "label": "stars"})[1] == {"text": "b", "label": "4"}
    assert read("parquet", file=path, fields={"text": "pair.de"}, limit=1) == [{"text": "ä"}]
    assert "x.parquet: row 2: field 'pair.de' is null" in refused("parquet", file=path, fields={"text": "pair.de"})
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert "row 1: no field 'star'; available: pair, stars" in refused("parquet", file=path, fields={"text": "star"})
    assert "not a Parquet file" in refused("parquet", file=write("y.txt", "a"), fields={"text": "a"})
    assert "no such file" in refused("parquet", file=str(tmp_path / "z"), fields={"text": "a"})


def test_parquet_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "pyarrow>=21"' in refused("parquet", file="x.parquet", fields={"text": "a"})


# what needs no file


def test_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(train: int, valid: int, test: int, seed: int) -> tuple[list[SimpleNamespace], ...]:
        return tuple([SimpleNamespace(english=f"{n} {seed}", german="x", kind="")] * n for n in (train, valid, test))

    monkeypatch.setattr("tfkit.data.phrases.split", split)
    for name, count in (("train", 5), ("valid", 2), ("test", 3)):
        found = read("phrases", split=name, train=5, valid=2, test=3, seed=8)
        assert found == [{"source": f"{count} 8", "target": "x"}] * count


def test_docstrings_part_without_overlap_and_are_the_same_again() -> None:
    train, valid, test = (texts("docstrings", characters=300_000, split=name) for name in ("train", "valid", "test"))
    whole = [*train, *valid, *test]
    assert len(set(whole)) == len(whole) and sum(map(len, whole)) <= 300_000
    for part in (valid, test):
        assert 0.005 < len(part) / len(whole) < 0.2
    assert texts("docstrings", characters=300_000) == train
    assert texts("docstrings", characters=300_000, seed=1, split="valid") != valid
    assert texts("docstrings", characters=300_000, limit=3) == train[:3]


@pytest.mark.full
def test_summaries_are_first_sentences_parted_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def f():\n    """Return the first value.  It is e.g. 3.5 of\n    a list.\n\n    Raise if empty.\n    """\n'
    (tmp_path / "abc.py").write_text(text)
    (tmp_path / "ast.py").write_text('"""The same source.\n\nIt is e.g. 3.5 of a list. Raise if empty."""\n' + text)
    monkeypatch.setattr("tfkit.data.corpus.drawn.library", lambda: tmp_path)
    both = [pair for split in ("train", "valid", "test") for pair in read("docstrings", form="summary", split=split)]
    assert both == [{"source": "It is e.g. 3.5 of a list. Raise if empty.", "target": "Return the first value."}]
    monkeypatch.undo()
    splits = [read("docstrings", form="summary", split=split) for split in ("train", "valid", "test")]
    whole = [pair for split in splits for pair in split]
    for field in ("source", "target"):
        assert len({pair[field] for pair in whole}) == len(whole)
    modules = {(source, target): module for module, source, target in [*summaries()][::-1]}
    train, valid, test = ({modules[tuple(pair.values())] for pair in split} for split in splits)
    assert not train & valid and not train & test and not valid & test
    assert all(len(split) > 50 for split in splits) and min(len(valid), len(test)) > 10


def test_docstrings_come_from_sources_that_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.data.corpus.drawn.library", lambda: tmp_path)
    (tmp_path / "json" / "tests").mkdir(parents=True)
    (tmp_path / "json" / "tests" / "x.py").write_text('"""A test."""')
    (tmp_path / "json" / "__init__.py").write_text(
        '"""Module."""\nraise SystemExit\nclass A:\n    """Class."""\n'
        '    def f(self):\n        """Method\n        f."""\n'
    )
    (tmp_path / "abc.py").write_text('"""Module."""\n"\\d"\n')
    (tmp_path / "ast.py").write_text("no python")
    (tmp_path / "foreign.py").write_text('"""Not of the library."""')
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {'a': 'Topic\\n', 'b': f()}")
    both = [*texts("docstrings", split="train"), *texts("docstrings", split="valid")]
    assert sorted(both) == ["Class.", "Method\nf.", "Module.", "Topic"]
    monkeypatch.setattr("tfkit.data.corpus.drawn.library", lambda: tmp_path / "json" / "tests")
    (tmp_path / "json" / "tests" / "x.py").unlink()
    assert f"{tmp_path}/json/tests" in refused("docstrings")  # which has no source


@pytest.mark.full
def test_data_needs_no_torch() -> None:
    code = (
        "import sys, tfkit.core.registry as r, tfkit.data.batches, tfkit.data.tokenizer.base, tfkit.data.corpus.base\n"
        "r.REGISTRY.names('corpus'), r.REGISTRY.names('tokenizer')\n"
        "assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# where an example stands


@looped(
    ("name", "content", "options", "places"),
    [
        ("text", "a\n\nb\nc\n", {}, ["a.txt:1", "a.txt:3", "a.txt:4"]),
        ("text", "a\nb\n\n\nc\nd\n", {"unit": "paragraph"}, ["a.txt:1", "a.txt:5"]),
        ("text", "a\nb\n", {"unit": "document"}, ["a.txt:1"]),
        ("labelled_text", "x a\nx \ny b\n", {"skip_empty": True}, ["a.txt:1", "a.txt:3"]),
        ("parallel_tsv", "k\tk\na\tb\nc\td\n", {"header": True}, ["a.txt:2", "a.txt:3"]),
        (
            "json_lines",
            '{"t": "a"}\n\n{"t": "b"}\n',
            {"fields": {"text": "t"}, "skip_empty": True},
            ["a.txt:1", "a.txt:3"],
        ),
        ("csv", 't\n"a\nb"\nc\n', {"fields": {"text": "t"}}, ["a.txt:2", "a.txt:4"]),
    ],
)
def test_the_place_of_each_example(
    write: Write, name: str, content: str, options: dict[str, Any], places: list[str]
) -> None:
    file = write("a.txt", content)
    options = {**options, "files" if name == "text" else "file": file}
    corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    assert len(corpus.examples()) == len(places)
    assert [
        corpus.where(number).removeprefix(file.removesuffix("a.txt")) for number in range(1, len(places) + 1)
    ] == places


def test_the_place_in_a_corpus_without_files() -> None:
    corpus = REGISTRY.get("corpus", "phrases").Config().build()
    assert corpus.where(3) == "the corpus 'phrases': example 3"
