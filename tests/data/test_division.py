"""`data.split` divides a corpus: groups stay whole, sizes and shares are those asked for, and lists are obeyed."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Corpus
from tfkit.data.corpus.division import table
from tfkit.recipe.settings.sections import Data

SCRIPT = """
import json, sys
from tfkit.data.corpus.division import table
from tfkit.recipe.settings.sections import Data
data = Data.model_validate(json.loads(sys.argv[1]))
print(table(data.train, data.split), end="")
"""
NAMES = ("train", "valid", "test")
Rows = Sequence[Mapping[str, str]]


def rows_of(count: int, subjects: int, seed: int = 0) -> list[dict[str, str]]:
    rng = random.Random(seed)
    return [
        {
            "id": f"x{number}",
            "subject": f"s{min(rng.randrange(subjects), rng.randrange(subjects))}",
            "text": f"text {number}",
            "label": rng.choices("abc", (6, 3, 1))[0],
        }
        for number in range(count)
    ]


def written(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def data_of(file: Path, split: Mapping[str, Any], **options: Any) -> Data:
    train = {"type": "csv", "file": str(file), "fields": {"text": "text", "label": "label"}, **options}
    return Data.model_validate({"train": train, "split": {"by_place": False, **split}})


def divided(data: Data, *also: str) -> dict[str, list[dict[str, str]]]:
    """The examples of each split, with further columns."""
    found = {}
    for name, config in data.splits():
        corpus: Corpus = config.build()
        corpus.also = also
        found[name] = corpus.examples()
    return found


def checked(parts: Mapping[str, Rows], rows: Rows) -> None:
    """Each example is in one split, and in the order of the file."""
    texts = [row["text"] for row in rows]
    for part in parts.values():
        places = [texts.index(row["text"]) for row in part]
        assert places == sorted(places)
    assert Counter(row["text"] for part in parts.values() for row in part) == Counter(texts)


def shares(rows: Rows) -> dict[str, float]:
    return {label: count / len(rows) for label, count in Counter(row["label"] for row in rows).items()}


def test_groups_stay_whole_and_sizes_are_as_asked_to_within_a_group(tmp_path: Path) -> None:
    for seed in range(6):
        rows = rows_of(300, 30, seed)
        largest = max(Counter(row["subject"] for row in rows).values())
        data = data_of(written(tmp_path / "rows.csv", rows), {"by": "subject", "valid": 0.1, "test": 60, "seed": seed})
        parts = divided(data, "subject")
        checked(parts, rows)
        groups = [{row["subject"] for row in parts[name]} for name in NAMES]
        assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
        for name, size in zip(NAMES, (210, 30, 60), strict=True):
            assert abs(len(parts[name]) - size) < (2 if name == "train" else 1) * largest, (seed, name)


@pytest.mark.full
def test_single_examples_are_divided_exactly_and_strata_evenly(tmp_path: Path) -> None:
    rows = rows_of(997, 5)
    file = written(tmp_path / "rows.csv", rows)
    for split in ({"valid": 0.1, "test": 0.2}, {"valid": 0.1, "test": 0.2, "stratify": "label", "seed": 3}):
        parts = divided(data_of(file, split))
        checked(parts, rows)
        assert [len(parts[name]) for name in NAMES] == [698, 100, 199]
    for name, part in parts.items():  # of the stratified ones
        for label, share in shares(rows).items():
            assert abs(shares(part)[label] - share) * len(part) <= 2, (name, label)
    few = divided(data_of(file, {"valid": 1, "test": 1}))
    assert [len(few[name]) for name in NAMES] == [995, 1, 1]


@pytest.mark.full
def test_groups_of_one_label_are_stratified(tmp_path: Path) -> None:
    rows = [row | {"label": "ab"[int(row["subject"][1:]) % 4 == 0]} for row in rows_of(2000, 100)]
    parts = divided(data_of(written(tmp_path / "rows.csv", rows), {"by": "subject", "valid": 0.2, "stratify": "label"}))
    largest = max(Counter(row["subject"] for row in rows).values())
    for part in parts.values():
        for label, share in shares(rows).items():
            assert abs(shares(part)[label] - share) * len(part) <= 2 * largest


@pytest.mark.full
def test_the_division_is_of_the_seed_not_of_order_process_or_place(tmp_path: Path) -> None:
    rows = rows_of(200, 20)
    other = rows[:]
    random.Random(1).shuffle(other)
    (tmp_path / "elsewhere").mkdir()
    first, second = written(tmp_path / "rows.csv", rows), written(tmp_path / "elsewhere" / "b.csv", other)
    for split in ({"by": "subject", "valid": 0.2, "stratify": "label"}, {"valid": 0.2, "test": 0.3}):
        texts = [
            {name: {row["text"] for row in part} for name, part in divided(data_of(file, {**split, **seed})).items()}
            for file, seed in ((first, {}), (second, {}), (first, {"seed": 1}))
        ]
        assert texts[0] == texts[1] != texts[2]
        plain = {"train": {"type": "csv", "file": str(first), "fields": {"text": "text", "label": "label"}}}
        given = json.dumps({**plain, "split": {"by_place": False, **split}})
        here = data_of(first, split)
        assert here.split is not None
        for salt in ("0", "77"):
            environment = {**os.environ, "PYTHONHASHSEED": salt}
            ran = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, env=environment)
            assert ran.stdout == table(here.train, here.split), ran.stderr
        listed = dict(csv.reader(table(here.train, here.split).splitlines()[1:]))
        assert listed == {f"x{text[5:]}": name for name, part in texts[0].items() for text in part}


@pytest.mark.full
def test_equal_examples_stay_together(tmp_path: Path) -> None:
    rows = [{"text": f"t{number // 4}", "label": "a"} for number in range(100)]
    random.Random(0).shuffle(rows)
    parts = divided(data_of(written(tmp_path / "rows.csv", rows), {"valid": 0.2, "test": 0.2}))
    texts = [{row["text"] for row in part} for part in parts.values()]
    assert [len(part) for part in parts.values()] == [60, 20, 20]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    data = data_of(tmp_path / "rows.csv", {"valid": 0.2})
    assert data.split is not None and table(data.train, data.split).startswith("id,split\n1,")


@pytest.mark.full
def test_windows_are_listed_with_the_ids_of_their_sequences(tmp_path: Path) -> None:
    (tmp_path / "x.fa").write_text("".join(f">s{number}\nACGTAC\n" for number in range(4)))
    train = {"type": "fasta", "file": str(tmp_path / "x.fa"), "windows": {"length": 3}}
    data = Data.model_validate({"train": train, "tokenizer": "character", "split": {"by": "id", "valid": 0.25}})
    assert data.split is not None
    rows = [line.split(",") for line in table(data.train, data.split).splitlines()[1:]]
    assert [name for name, _ in rows] == [f"s{number // 2}" for number in range(8)]
    assert len({name for name, part in rows if part == "valid"}) == 1


@pytest.mark.full
def test_lists_of_ids_or_groups_are_obeyed_and_shares_divide_the_rest(tmp_path: Path) -> None:
    rows = rows_of(100, 12)
    file = written(tmp_path / "rows.csv", rows)
    (tmp_path / "valid.txt").write_text("x3\n\nx17 \nx4\n")
    (tmp_path / "test.txt").write_text("s1\ns2\n")
    parts = divided(data_of(file, {"valid": str(tmp_path / "valid.txt")}), "id")
    assert [row["id"] for row in parts["valid"]] == ["x3", "x4", "x17"] and len(parts["train"]) == 97
    parts = divided(data_of(file, {"by": "subject", "valid": 0.2, "test": str(tmp_path / "test.txt")}), "subject")
    checked(parts, rows)
    assert {row["subject"] for row in parts["test"]} == {"s1", "s2"}
    largest = max(Counter(row["subject"] for row in rows).values())
    assert abs(len(parts["valid"]) - 0.2 * (100 - len(parts["test"]))) < largest


def text_data(file: Path, unit: str, **split: Any) -> Data:
    return Data.model_validate({
        "train": {"type": "text", "files": str(file), "unit": unit},
        "split": {"by_place": True, **split},
    })  # fmt: skip


@pytest.mark.full
def test_running_text_is_cut_by_place(tmp_path: Path) -> None:
    rng = random.Random(0)
    lines = ["".join(rng.choices("abé ", k=rng.randrange(1, 30))).strip() or "x" for _ in range(400)]
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for unit, texts in (("document", ["\n".join(lines) + "\n"]), ("line", lines)):
        whole = "".join(texts)
        for valid, test in ((0.1, None), (0.1, 0.3), (50, None), (0.25, 7)):
            split = {"valid": valid} if test is None else {"valid": valid, "test": test}
            found = divided(text_data(file, unit, **split))
            sizes = [size if size >= 1 else size * len(whole) for size in split.values()]
            ends = [int(len(whole) - sum(sizes[place:]) + 1e-6) for place in range(len(sizes))]
            expected = [whole[begin:end] for begin, end in zip([0, *ends], [*ends, len(whole)], strict=True)]
            assert ["".join(row["text"] for row in part) for part in found.values()] == expected, (unit, split)
            inner = [row["text"] for part in found.values() for row in part[1:-1]]
            assert set(inner) <= set(texts)
    data = text_data(file, "line", valid=0.1)
    corpus: Corpus = dict(data.splits())["valid"].build()
    begin = next(n for n in range(400) if sum(map(len, lines[: n + 1])) > int(0.9 * len("".join(lines)) + 1e-6))
    assert corpus.where(1).endswith(f"text.txt:{begin + 1}") and corpus.where(3).endswith(f"text.txt:{begin + 3}")


@pytest.mark.full
def test_examples_with_labels_are_divided_by_place_whole(tmp_path: Path) -> None:
    rows = rows_of(70, 5)
    parts = divided(data_of(written(tmp_path / "rows.csv", rows), {"by_place": True, "valid": 0.1, "test": 5}))
    assert [row["text"] for name in NAMES for row in parts[name]] == [row["text"] for row in rows]
    assert [len(parts[name]) for name in NAMES] == [58, 7, 5]


@pytest.mark.full
def test_selection_mixtures_and_drawn_corpora_are_divided(tmp_path: Path) -> None:
    rows = rows_of(120, 12)
    file = written(tmp_path / "rows.csv", rows)
    data = data_of(file, {"by": "subject", "valid": 0.3}, where="label!=c", skip=2, limit=60)
    chosen = [row for row in rows if row["label"] != "c"][2:62]
    parts = divided(data, "subject")
    checked(parts, chosen)
    for name, config in data.splits():
        corpus: Corpus = config.build()
        for number, row in enumerate(parts[name], 1):
            assert corpus.where(number).endswith(f"rows.csv:{rows.index(chosen[texts(chosen).index(row['text'])]) + 2}")
        assert corpus.first(3) == [{key: row[key] for key in ("text", "label")} for row in parts[name][:3]]
    part = {"type": "csv", "file": str(file), "fields": {"text": "text", "label": "label"}}
    of = [{"corpus": {**part, "where": "label=a"}}, {"corpus": {**part, "where": "label=b"}}]
    for train in ({"type": "mixture", "of": of}, {"type": "copying", "count": 40}):
        data = Data.model_validate({"train": train, "split": {"valid": 0.25, "by_place": False}})
        found, whole = divided(data), data.train.build().examples()
        key = [json.dumps(row) for row in whole]
        assert Counter(json.dumps(row) for rows in found.values() for row in rows) == Counter(key)
        assert abs(len(found["valid"]) - len(whole) / 4) <= max(Counter(key).values())


def texts(rows: Iterable[Mapping[str, str]]) -> list[str]:
    return [row["text"] for row in rows]


@pytest.mark.full
def test_what_cannot_be_divided_is_refused_with_file_and_value(tmp_path: Path) -> None:
    rows = rows_of(20, 4)
    file = written(
        tmp_path / "rows.csv", [row | {"one": "same", "gap": row["id"] if row["id"] != "x6" else ""} for row in rows]
    )
    (tmp_path / "a.txt").write_text("x1\nx2\nx3\nx4\nx99\n")
    (tmp_path / "b.txt").write_text("x4\nx3\nx2\n")
    a, b = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    for split, words in (
        ({"by": "animal", "valid": 0.1}, r"rows\.csv:1: no column 'animal' in the header"),
        ({"by": "one", "valid": 0.1}, r"rows\.csv: data\.split: 1 groups? of 'one'"),
        ({"by": "gap", "valid": 0.1}, r"rows\.csv:8: gap is empty, but data\.split reads it"),
        ({"valid": 0.01}, r"rows\.csv: data\.split: .*20 examples.*valid would be empty"),
        ({"valid": 15, "test": 5}, r"train would be empty"),
        ({"valid": 0.1, "stratify": "colour"}, "no column 'colour'"),
        ({"valid": a}, r"a\.txt: not in .*rows\.csv: 'x99'"),
        ({"valid": a, "test": b}, r"a\.txt and .*b\.txt: in two lists: 'x2', 'x3', 'x4'"),
        ({"valid": 30, "by_place": True}, r"rows\.csv: data\.split leaves nothing for train"),
    ):
        with pytest.raises(DataError, match=words):
            divided(data_of(file, split))


@pytest.mark.full
def test_no_corpus_can_be_named_that_is_a_part_of_another() -> None:
    assert not REGISTRY.has("corpus", "part")
