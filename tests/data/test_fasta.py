"""FASTA and gzip: what real files hold, against a parser in plain Python, and what is said of those that are wrong."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Corpus
from tfkit.recipe.settings.split import Partition

FIELDS = {"text": "sequence", "id": "id", "family": "family", "words": "description"}
PAIRS = dict(zip("ACGTRYKMBDHVSWNacgtrykmbdhvswn-.", "TGCAYRMKVHDBSWNtgcayrmkvhdbswn-.", strict=True))


def corpus(name: str, **options: Any) -> Corpus:
    built: Corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    return built


def refused(name: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        corpus(name, **options).examples()
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(path: Path, content: str | bytes, packed: bool = False) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if packed else data)
    return str(path)


def drawn(rng: random.Random) -> tuple[str, list[tuple[int, dict[str, str]]]]:
    """A file with everything that real ones have, and its records with the numbers of their headers' lines."""
    end = rng.choice(["\n", "\r\n"])
    file = ["; made at random"] * rng.randrange(2)
    found = []
    for number in range(rng.randrange(1, 7)):
        family = rng.choice(["a", "two words", "5'-3'", "x=y"])
        plain = f"family={family}" if rng.random() < 0.3 else f'family="{family}"'
        value = rng.choice([plain, f"[family={family}]"])
        words = ["", "heat shock ", "a  chain of "][rng.randrange(3)]
        sequence = "".join(rng.choice("ACGTacgtRYNn-") for _ in range(rng.randrange(1, 40)))
        file.append(f"> {'':{rng.randrange(2)}}s{number} {words}{value}")
        record = {"text": sequence, "id": f"s{number}", "family": family, "words": " ".join(words.split())}
        found.append((len(file), record))
        width = rng.randrange(1, 20)
        for start in range(0, len(sequence), width):
            piece = sequence[start : start + width]
            file += rng.choice([[piece], [f" {piece[:2]} {piece[2:]}\t"], ["", piece], ["; comment", piece]])
        if rng.random() < 0.3:
            file[-1] += "*"
    return rng.choice(["", "\ufeff"]) + end.join(file) + end * rng.randrange(3), found


def windows(text: str, length: int, stride: int) -> list[tuple[int, str]]:
    """The windows of a text, each begun unless the one before has reached the end."""
    found, start = [(0, text[:length])], stride
    while found[-1][0] + length < len(text) and start < len(text):
        found.append((start, text[start : start + length]))
        start += stride
    return found


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 200), marks=pytest.mark.full)])
def test_records_are_those_of_a_plain_parser(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        content, records = drawn(rng)
        file = written(tmp_path / f"{seed}.txt", content, rng.random() < 0.5)
        made = (
            corpus("fasta", file=file, fields=FIELDS, skip_empty=False)
            if all(one["words"] for _, one in records)
            else corpus("fasta", file=file, fields={key: name for key, name in FIELDS.items() if key != "words"})
        )
        expected = [{key: one[key] for key in made.fields} for _, one in records]
        assert made.examples() == list(made.stream()) == made.first(99) == expected
        assert [made.where(n + 1) for n in range(len(records))] == [f"{file}:{line}" for line, _ in records]

        length, stride = rng.randrange(1, 12), rng.randrange(1, 12)
        cut = corpus("fasta", file=file, case="upper", reverse_complement=True,
                     fields={"id": "id", "start": "start"}, windows={"length": length, "stride": stride})  # fmt: skip
        both = []
        for _, one in records:
            for start, text in windows(one["text"].upper(), length, stride):
                other = "".join(PAIRS[letter] for letter in reversed(text))
                both += [{"text": each, "id": one["id"], "start": str(start)} for each in (text, other)]
        assert cut.examples() == both


@pytest.mark.full
def test_wrong_fasta_is_named_by_line(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("ACGT\n>a\nC\n", {}, ":1: expected a header (>ID ...) before 'ACGT'"),
        ("\n; text\n@read\nACGT\n", {}, ":3: expected a header (>ID ...) before '@read'"),
        (">a\n", {}, ":1: text is empty; fill it in, or set skip_empty: true"),
        (">a\nA\n>b\n>c\nC\n", {}, ":3: text is empty; fill it in, or set skip_empty: true"),
        (">a\nC\n>\nC\n", {}, ":3: the header has no id; write >ID"),
        (">a\nC\n", {"fields": {"label": "family"}}, ":1: no field 'family'; available: "),
        (">a famliy=3\nC\n", {"fields": {"label": "family"}}, "Did you mean 'famliy'?"),
        (">a\nC\n>b\nACEL\n", {"reverse_complement": True}, ":3: letter 3 of the sequence, 'E', is no nucleotide "),
        (">a\nACUT\n", {"reverse_complement": True}, ":1: letter 4 of the sequence, 'T', is no "),
        ("; nothing\n", {}, ": contains no example"),
    ]
    for number, (content, options, message) in enumerate(cases):
        for packed in (False, True):
            file = written(tmp_path / f"{number}{packed}.fa", content, packed)
            said = refused("fasta", file=file, **options)
            assert said.startswith(f"{file}:") and message in said, said
    kept = corpus("fasta", file=written(tmp_path / "x.fa", ">a\n>b\nC\n>c\n*\n"), skip_empty=True)
    assert kept.examples() == [{"text": "C"}] and kept.where(1).endswith("x.fa:2")


@pytest.mark.full
def test_keys_of_headers(tmp_path: Path) -> None:
    header = """sp|P1|X a b OS=Homo sapiens GN='it is' PE=1 c PE=2 id=7 "q" e= [note=x [y] k=v=w =z"""
    file = written(tmp_path / "x.fa", f">{header}\nM\n")
    names = ("description", "OS", "GN", "PE", "id", "note", "k")
    (one,) = corpus("fasta", file=file, fields={name: name for name in names}).examples()
    assert one == {
        "text": "M", "description": "a b", "OS": "Homo sapiens", "GN": "it is", "PE": "2", "id": "sp|P1|X",
        "note": "x [y", "k": "v=w =z",
    }  # fmt: skip
    (rna,) = corpus(
        "fasta", file=written(tmp_path / "r.fa", ">a\nACGur\n"), reverse_complement=True, limit=1
    ).examples()
    assert rna == {"text": "ACGur"}
    both = corpus("fasta", file=str(tmp_path / "r.fa"), reverse_complement=True, fields={"text": "sequence"}).examples()
    assert both[1] == {"text": "yaCGU"}


@pytest.mark.full
def test_records_are_selected_by_their_headers(tmp_path: Path) -> None:
    file = written(tmp_path / "x.fa", "".join(f">s{n} family={n % 3}\n{'ACGT' * n}\n" for n in range(1, 9)))
    made = corpus("fasta", file=file, where="family=2", skip=1)
    assert made.examples() == [{"text": "ACGT" * n} for n in (5, 8)] and made.where(1) == f"{file}:9"
    made.also = ("id",)
    assert [example["id"] for example in made.stream()] == ["s5", "s8"]
    split = Partition.model_validate({"by": "id", "valid": 0.3})
    config = REGISTRY.get("corpus", "fasta").Config(file=file, windows={"length": 3}, fields={"label": "id"})
    parts = [{one["label"] for one in config.part_of(split, name).build().examples()} for name in ("train", "valid")]
    assert parts[0].isdisjoint(parts[1]) and len(parts[0] | parts[1]) == 8  # windows of a sequence stay together


def test_fasta_as_lines_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    content = "; made by hand\n>sp|P1 a protein\n\nmkvl\n"
    for name in ("x.fasta", "x.FA", "x.faa.gz"):
        file = written(tmp_path / name, content, name.endswith("gz"))
        for kind, option in (("text", "files"), ("labelled_text", "file")):
            said = refused(kind, **{option: file})
            assert said == f"{file}: is FASTA, whose headers are not text; read it with {{type: fasta, file: {file}}}"
    assert "is FASTA" in refused("labelled_text", file=written(tmp_path / "x.txt", ">a b\nMKV LA*\n"))
    masked = f">chr1\n{'ACGTRYacgtn' * 3}\n"  # a part in lower case, with codes of several nucleotides
    assert "is FASTA" in refused("text", files=written(tmp_path / "z.txt", masked))
    assert len(corpus("text", files=written(tmp_path / "y.txt", content)).examples()) == 3


# --- gzip


@pytest.mark.full
def test_gzip_is_read_wherever_text_is(tmp_path: Path) -> None:
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "text": ("a b\nc\n", {}),
        "labelled_text": ("a b\nc d\n", {}),
        "parallel_tsv": ("a\tb\nc\td\n", {}),
        "csv": ("a,b\n1,2\n", {"fields": {"text": "b"}}),
        "json_lines": ('{"a": "x"}\n', {"fields": {"text": "a"}}),
        "chat": ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n', {}),
        "conllu": ("1\ta\tb\tc\td\te\tf\tg\th\ti\n\n", {}),
        "fasta": (">a\nACGT\n", {}),
    }
    for name, (content, options) in cases.items():
        option = "files" if name == "text" else "file"
        made = [
            corpus(name, **{option: written(tmp_path / f"{name}{packed}", content * 50, packed)}, **options)
            for packed in (False, True)
        ]
        assert made[0].examples() == made[1].examples() == made[1].first(999) == list(made[1].stream())
    rng = random.Random(1)
    whole = gzip.compress(b"".join(b"a line of %d\n" % rng.randrange(10**9) for _ in range(999)))
    for number in range(0, len(whole), 61):
        damaged = bytearray(whole)
        damaged[number] ^= 0x55
        for data in (whole[: number or None], bytes(damaged)):
            file = written(tmp_path / "damaged", data)
            for options in ({}, {"unit": "document"}):
                try:
                    texts = corpus("text", files=file, **options).examples()
                except DataError as error:
                    assert str(error).startswith(f"{file}:") and "\n" not in str(error)
                else:
                    assert len(texts) == (1 if options else 999)


@pytest.mark.full
def test_a_bomb_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = written(tmp_path / "bomb", b"a" * 2**28, True)
    monkeypatch.setattr("tfkit.data.corpus.lines.free_memory", lambda: 2**26)
    for options in ({}, {"unit": "document"}):
        tracemalloc.start()
        said = refused("text", files=small, **options)
        assert "times as much memory, but only 64.0 MiB are free" in said
        assert tracemalloc.get_traced_memory()[1] < 2**28
        assert len(corpus("text", files=small, **options).first(1)[0]["text"]) == 2**20
        tracemalloc.stop()
    records = written(tmp_path / "long", b">a\n" + (b"ACGT" * 20 + b"\n") * 2**21, True)
    assert "times as much memory" in refused("fasta", file=records)
    assert len(corpus("fasta", file=records, windows={"length": 9}).first(3)) == 3


@pytest.mark.full
def test_the_beginning_of_one_long_line_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.data.corpus.base.BEGINNINGS", (50, 100))
    (tmp_path / "x.fasta").write_text(">a\n" + "ACGT" * 100 + "\n>b\nAC\n", encoding="utf-8")
    made = corpus("fasta", file=str(tmp_path / "x.fasta"))
    assert [example["text"] for example in made.first(2)] == [("ACGT" * 100)[:47]]
    assert [len(example["text"]) for example in made.examples()] == [400, 2]
