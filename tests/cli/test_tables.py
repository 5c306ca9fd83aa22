"""Files of records for `predict`, `embed` and `generate`, and files of answers: each format like JSON lines."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfkit
from tests.test_tasks import classes

from .typed import refused
from .typed import typed as command

TEXTS = ("fine", "dull", "great", "fine")
IDS = ("a", 'b,"c"', "a", "007")  # one is repeated


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    recipe = classes(folder)
    recipe["train"] |= {"steps": 2, "evaluate_every": 2, "checkpoint_every": 2}
    return tfkit.train(recipe, out=folder / "run", progress=False).folder


def inputs(folder: Path, texts: tuple[str, ...] = TEXTS, ids: tuple[str, ...] = IDS) -> Iterator[tuple[object, ...]]:
    """Write the texts in each format; yield the options that read them, JSON lines first."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"name": one, "said": text} for one, text in zip(ids, texts, strict=True)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    files = {"x.jsonl": lines, "x.ndjson": lines, "x.txt": lines}
    for name, delimiter in (("x.csv", ","), ("x.TSV", "\t")):
        with open(folder / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["said", "name"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
        files[name] = (folder / name).read_text()
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        for file in (name, f"{name}.gz"):
            yield "--input", folder / file, "--field", "said", "--id", "name"
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "x.parquet")
    yield "--input", folder / "x.parquet", "--field", "said", "--id", "name"
    fasta = "".join(f">{one}  name\n{text[:2]}\n{text[2:]}\n" for one, text in zip(ids, texts, strict=True))
    (folder / "x.fasta").write_text(fasta)
    (folder / "x.fa.gz").write_bytes(gzip.compress(fasta.encode()))
    yield "--input", folder / "x.fasta"
    yield "--input", folder / "x.fa.gz", "--field", "sequence", "--id", "id"


def read(file: Path) -> list[dict[str, Any]]:
    """Return the answers of a file as JSON lines would have them."""
    if file.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()  # type: ignore[no-any-return]
    if file.suffix == ".npy":
        ids = file.with_suffix(".ids").read_text().splitlines()
        return [{"id": one, "vector": row} for one, row in zip(ids, np.load(file).tolist(), strict=True)]
    if file.suffix not in (".csv", ".tsv"):
        return [json.loads(line) for line in file.read_text().splitlines()]
    rows = []
    with open(file, newline="") as opened:
        for row in csv.DictReader(opened, delimiter="," if file.suffix == ".csv" else "\t"):
            values: dict[str, Any] = {}
            for name, cell in row.items():
                column, nested, key = name.partition(".")
                if nested:
                    values.setdefault(column, {})[key] = json.loads(cell)
                else:
                    values[name] = cell if name in ("id", "label", "text", "prompt") else json.loads(cell)
            rows.append({name: list(one.values()) if name == "vector" else one for name, one in values.items()})
    return rows


@pytest.mark.full
def test_each_format_is_read_and_written_like_json_lines(classifier: Path, writer: Path, tmp_path: Path) -> None:
    every = list(inputs(tmp_path))
    beams = ("--num-beams", 2, "--n-best", 2)
    for words, more in ((("predict", classifier), ()), (("embed", classifier), ()), (("generate", writer), beams)):
        expected = [json.loads(line) for line in command(*words, *every[0], *more).stdout.splitlines()]
        assert [one["id"] for one in expected] == [one for one in IDS for _ in range(2 if more else 1)]
        suffixes = ["csv", "parquet", "jsonl", "tsv", "ndjson", "txt", *["npy"] * (words[0] == "embed")]
        for number, source in enumerate(every):
            out = tmp_path / f"{words[0]}.{suffixes[number % len(suffixes)]}"
            done = command(*words, *source, *more, "--out", out)
            assert (done.exit_code, done.output) == (0, ""), (source, done.output)
            found = read(out)
            if words[0] == "embed":
                assert [list(one) for one in found] == [["id", "vector"]] * len(IDS)
                np.testing.assert_allclose(
                    [one.pop("vector") for one in found], [one["vector"] for one in expected], 1e-6, err_msg=str(source)
                )
                assert [one["id"] for one in found] == list(IDS)
            else:
                assert found == expected, source


@pytest.mark.full
def test_what_cannot_be_read_or_written_is_refused_in_one_line(
    classifier: Path, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(inputs(tmp_path))
    monkeypatch.chdir(tmp_path)
    files = {
        "no_rows.csv": "id,said\n",
        "ragged.csv": 'said\n"a\nb"\na,b\n',
        "quote.csv": 'said\n"a\n',
        "blank.csv": "id,said\n1,\n",
        "lines.txt": ">a b\nACGT\n",
        "bare.fa": "ACGT\n",
        "none.fa": ">a\n\n>b\nAC\n",
        "broken.parquet": "a",
        "broken.csv.gz": "a",
        "null.jsonl": '{"name": null, "said": "a"}\n',
        "some.jsonl": '{"name": 1, "said": "a"}\n{"said": "a"}\n',
        "break.jsonl": '{"id": "a\\u2028b", "said": "a"}\n',
        "v.ids": "fine\n",
        "plain.csv": "said\nfine\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "half.csv.gz").write_bytes((tmp_path / "x.csv.gz").read_bytes()[:-9])
    cases: list[tuple[str, str]] = [
        ("x.csv", "x.csv contains CSV; name the text field with --field NAME; the first record has said, name"),
        ("x.csv.gz", "x.csv.gz contains CSV; name the text field with --field NAME"),
        ("x.parquet", "x.parquet contains Parquet; name the text field with --field NAME; the first record has "),
        ("x.csv --field sad", "x.csv:2: no field 'sad'; available: said, name. Did you mean 'said'?"),
        ("x.csv --field said --id nam", "x.csv:2: no field 'nam'; available: said, name. Did you mean 'name'?"),
        ("x.parquet --field said --id nam", "x.parquet: row 1: no field 'nam'; available: name, said"),
        ("x.fasta --field family", "x.fasta:1: no field 'family'; available: "),
        ("x.fasta --id family", "x.fasta:1: no field 'family'; available: "),
        ("no_rows.csv --field said", "no_rows.csv: contains no text"),
        ("ragged.csv --field said", "ragged.csv:4: 2 columns, but the first row has 1"),
        ("quote.csv --field said", "quote.csv:2: the row that starts here is not valid CSV"),
        ("blank.csv --field said", "blank.csv:2: said is empty"),
        ("lines.txt", "lines.txt: is FASTA, whose headers are not text; save it as NAME.fasta, and read it with --in"),
        ("- <lines.txt", "standard input: is FASTA, whose headers are not text; save it as NAME.fasta"),
        ("bare.fa", "bare.fa:1: expected a header (>ID ...) before 'ACGT'"),
        ("none.fa", "none.fa:1: sequence is empty"),
        ("broken.parquet --field said", "broken.parquet: not a Parquet file"),
        ("half.csv.gz --field said", "half.csv.gz: the gzip file is damaged or truncated"),
        ("absent.csv --field said", "absent.csv: no such file"),
        ("null.jsonl --field said --id name", "null.jsonl:1: name must be a text or a number, got null"),
        ("some.jsonl --field said --id name", "some.jsonl:2: no field 'name'; available: said"),
        ("x.txt --id name", "--id name names a column or key of a file; add --input FILE --field NAME"),
        ("x.csv --field said --out x.csv", "--out x.csv would overwrite the input file"),
        ("x.csv --field said --out x.csv.gz", "--out x.csv.gz: the answers cannot be .gz; use .csv, .jsonl, .parquet"),
        ("x.csv --field said --out run.csv/a.csv", "run.csv/a.csv: cannot be written: File exists"),
    ]
    (tmp_path / "run.csv").touch()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    runs = {"predict": classifier, "embed": classifier, "generate": writer}
    for (line, message), name in zip(cases, cycle(runs), strict=False):
        words, _, piped = line.partition(" <")
        stdin = (tmp_path / piped).read_text() if piped else None
        assert message in (said := refused(name, runs[name], "--input", *words.split(), stdin=stdin)), (name, line)
        assert said.count("\n") == 1 and said.startswith("tfkit: ")
    for line, message in (
        ("predict x.csv --field said --out v.npy", "--out v.npy: the answers cannot be .npy"),
        ("embed break.jsonl --field said --out v.npy", "break.jsonl:1: the id 'a\\u2028b' has a line break"),
        ("embed v.ids --out v.npy", "--out v.npy would overwrite the input file"),
    ):
        name, *more = line.split()
        assert message in refused(name, classifier, "--input", *more)
    said = refused("generate", writer, "--input", "x.fasta", "--stream")
    assert "--stream prints one text while it is generated; remove --input x.fasta" in said
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ("predict", classifier, "--input", "plain.csv", "--field", "said")
    assert "--out a.parquet: Parquet needs the package pyarrow: pip install" in refused(*words, "--out", "a.parquet")
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_ids_and_texts_are_kept_as_they_are(classifier: Path, writer: Path, tmp_path: Path) -> None:
    """Numbers, missing, mixed and odd ids; line breaks and quotes in answers, in all forms."""
    records = [{"id": one, "said": "fine"} for one in (3, 2**70, 1.5, "a\r", "\ud800", "=1", "")]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    line = ("--input", tmp_path / "x.jsonl", "--field", "said", "--out")
    texts = ["3", str(2**70), "1.5", "a\r", "\\ud800", "=1", ""]
    for suffix in ("csv", "parquet", "jsonl"):
        assert command("predict", classifier, *line, tmp_path / f"p.{suffix}").exit_code == 0
        found = [one["id"] for one in read(tmp_path / f"p.{suffix}")]
        assert found == ([one["id"] for one in records] if suffix == "jsonl" else texts)
    assert "the id 'a\\r' has a line break" in refused("embed", classifier, *line, tmp_path / "v.npy")
    assert not list(tmp_path.glob("v.*"))
    (tmp_path / "x.txt").write_text("fine\ndull\n")
    (tmp_path / "v.ids").write_text("old")
    for name, run, out in (
        ("predict", classifier, "n.parquet"),
        ("embed", classifier, "v.npy"),
        ("generate", writer, "n.csv"),
    ):
        assert command(name, run, "--input", tmp_path / "x.txt", "--output", tmp_path / out).exit_code == 0
        assert [int(one["id"]) for one in read(tmp_path / out)] == [1, 2]
    prompt = 'The "quick", brown'
    command("generate", writer, prompt, "--jsonl", "--out", tmp_path / "t.csv")
    (row,), ((one,),) = read(tmp_path / "t.csv"), tfkit.load_run(writer).candidates([prompt])
    assert (row["id"], row["prompt"], row["text"], row["ids"]) == ("1", prompt, one.text, list(one.ids))
    assert row["log_probability"] == pytest.approx(one.log_probability)


@pytest.mark.full
def test_sequences_are_read_in_the_case_of_training_and_truncation_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.fa").write_text(">a kind=p\nACGTacgt\n>b kind=q\nacga\n")
    (tmp_path / "capitals.fa").write_text(">a\nACGTACGT\n>b\nACGA\n")
    (tmp_path / "long.fa").write_text(f">c\n{'ACGT' * 50}\n")
    corpus = {"type": "fasta", "file": str(tmp_path / "x.fa"), "fields": {"label": "kind"}, "case": "upper"}
    recipe = classes(tmp_path)
    recipe["data"] |= {"train": corpus, "valid": corpus, "tokenizer": {"type": "symbols", "by": "[A-Z]"}}
    recipe["train"] |= {"steps": 2, "evaluate_every": 2, "checkpoint_every": 2}
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False).folder
    for word in ("predict", "embed"):
        caplog.clear()
        done = [command(word, run, "--input", tmp_path / name) for name in ("x.fa", "capitals.fa", "long.fa")]
        assert [one.exit_code for one in done] == [0, 0, 0], word
        assert done[0].stdout == done[1].stdout, word
        assert "1 of 1 texts are truncated to 12 tokens" in caplog.text, word


@pytest.mark.full
def test_a_file_of_answers_is_whole_or_not_there(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, a fault of the disk and a link leave the old file, or the new one with its own ids."""
    (tmp_path / "x.txt").write_text("fine\ndull\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/old").write_bytes(b"old")
    (tmp_path / "v.npy").symlink_to(tmp_path / "deep/old")
    (tmp_path / "deep/old.ids").write_text("old")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    names = ("a.csv", "a.parquet", "a.jsonl", "v.npy")
    before = sorted(tmp_path.rglob("*"))
    for target in ("tfkit.run.run.text_vectors", "tfkit.storage.files.sync"):
        for name in names:
            with monkeypatch.context() as patched:
                patched.setattr(target, interrupted)
                done = command("embed", classifier, tmp_path / "x.txt", "--out", tmp_path / name)
            assert done.exit_code == 130, done.output
            assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "v.npy").read_bytes() == b"old"
            assert target.endswith("sync") or (tmp_path / "deep/old.ids").read_text() == "old"


@pytest.mark.full
@pytest.mark.parametrize("out", ["", ".", "/"])
def test_a_file_of_answers_has_a_name(out: str, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("fine\n", encoding="utf-8")
    done = command("predict", classifier, "--input", tmp_path / "x.txt", "--out", out)
    assert done.exit_code == 2 and "cannot be written: Is a directory" in done.output
