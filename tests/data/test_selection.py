"""Every corpus takes `where`, `skip` and `limit`, in this order, and errors still name the line in the file."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Corpus

ROWS = [
    {"text": f"t{number}", "mark": "ab"[number % 2], "year": str(1990 + number % 7), "plain": "" if number % 5 else "x"}
    for number in range(60)
]
KEPT = [number for number, row in enumerate(ROWS) if row["mark"] == "a" and int(row["year"]) > 1992]
WHERE = ["mark=a", "year>1992"]


def built(name: str, **options: Any) -> Corpus:
    corpus: Corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    return corpus


@pytest.fixture
def kinds(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The same rows in each format with named columns; only `text` is a field."""
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    (tmp_path / "rows.jsonl").write_text("".join(f"\n{json.dumps(row | {'plain': None})}\n" for row in ROWS))
    kinds: dict[str, dict[str, Any]] = {
        "csv": {"file": str(tmp_path / "rows.csv")},
        "json_lines": {"file": str(tmp_path / "rows.jsonl")},
    }
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return kinds
    (tmp_path / "folder").mkdir()
    for name in ("rows.parquet", "folder/rows.parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / name)
    kinds |= {"parquet": {"file": str(tmp_path / "rows.parquet")}, "datasets": {"folder": str(tmp_path / "folder")}}
    return kinds


def test_where_then_skip_then_limit(kinds: dict[str, dict[str, Any]]) -> None:
    for kind, options in kinds.items():
        for skip, limit in ((0, None), (3, None), (0, 4), (3, 4), (3, 1000)):
            corpus = built(kind, **options, fields={"text": "text"}, where=WHERE, skip=skip, limit=limit)
            expected = KEPT[skip : None if limit is None else skip + limit]
            examples = [{"text": f"t{number}"} for number in expected]
            assert corpus.examples() == list(corpus.stream()) == examples, (kind, skip, limit)
            assert corpus.first(2) == examples[:2]
            line = {"csv": lambda row: f".csv:{row + 2}", "json_lines": lambda row: f".jsonl:{2 * row + 2}"}
            shown = line.get(kind, lambda row: f".parquet: row {row + 1}")
            for number, row in enumerate(expected, 1):
                assert corpus.where(number).endswith(shown(row)), (kind, number)


@pytest.mark.full
def test_further_columns_are_read_beside_the_fields(kinds: dict[str, dict[str, Any]]) -> None:
    for kind, options in kinds.items():
        corpus = built(kind, **options, fields={"text": "text"}, where="year<1993")
        corpus.also = ("mark", "plain", "text")
        rows = [row for row in ROWS if int(row["year"]) < 1993]
        plain = [row["plain"] if kind != "json_lines" else "" for row in rows]
        expected = [{"text": row["text"], "mark": row["mark"], "plain": own} for row, own in zip(rows, plain)]  # noqa: B905
        assert corpus.examples() == expected, kind


@pytest.mark.full
def test_drawn_corpora_and_mixtures_are_selected_too(kinds: dict[str, dict[str, Any]]) -> None:
    whole = built("tones", size=40).examples()
    label = whole[5]["label"]
    chosen = [example for example in whole if example["label"] == label]
    found = built("tones", size=40, where=f"label={label}", skip=1, limit=2).examples()
    assert [str(one["vectors"]) for one in found] == [str(one["vectors"]) for one in chosen[1:3]]
    csv_options = {"type": "csv", **kinds["csv"], "fields": {"text": "text"}}
    of = [{"corpus": {**csv_options, "where": "year=1990"}}, {"corpus": {**csv_options, "where": "year=1991"}}]
    both = built("mixture", of=of)
    some = built("mixture", of=of, where="mark=a", skip=1)
    texts = [one["text"] for one in both.examples()]
    expected = [text for text in texts if ROWS[int(text[1:])]["mark"] == "a"][1:]
    assert [one["text"] for one in some.examples()] == expected
    assert [int(some.where(n + 1).rpartition(":")[2]) - 2 for n in range(4)] == [int(t[1:]) for t in expected[:4]]


@pytest.mark.full
def test_only_the_start_is_read_unless_nothing_is_left_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "long.csv"
    file.write_text("text,n\n" + "".join(f"{'x' * 90},{number}\n" for number in range(2000)))
    monkeypatch.setattr("tfkit.data.corpus.base.BEGINNINGS", (2**10, 2**12))
    options: dict[str, Any] = {"file": str(file), "fields": {"text": "text", "label": "n"}}
    assert built("csv", **options, where="n>=5").first(2)[0]["label"] == "5"
    assert built("csv", **options, where="n>=1900").first(2)[0]["label"] == "1900"
    assert built("csv", **options, skip=1500).first(2)[1]["label"] == "1501"
    with pytest.raises(DataError, match="no example is left by where: n>=3000"):
        built("csv", **options, where="n>=3000").first(2)


@pytest.mark.full
def test_what_cannot_be_selected_is_refused(kinds: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    text = tmp_path / "plain.txt"
    text.write_text("\none\ntwo\n")
    for options, words in (
        ({"where": "colour=red"}, r"rows\.csv:1: no column 'colour' in the header; available: text, mark"),
        ({"where": "mark=z"}, r"rows\.csv: no example is left by where: mark=z"),
        ({"where": "mark=a", "skip": 30}, r"rows\.csv: no example is left by where: mark=a and skip: 30"),
    ):
        with pytest.raises(DataError, match=words):
            built("csv", **kinds["csv"], fields={"text": "text"}, **options).examples()
    with pytest.raises(DataError, match=r"rows\.jsonl:2: no field 'colour'"):
        built("json_lines", **kinds["json_lines"], fields={"text": "text"}, where="colour=red").examples()
    with pytest.raises(DataError, match=r"plain\.txt:2: no field 'colour'; 'text' has text"):
        built("text", files=str(text), where="colour=red").examples()
    for wrong, words in (("mark", "write a key"), ("year>old", "compares with a number"), (["a=b", "c"], "'c': write")):
        with pytest.raises(ValidationError, match=words):
            built("text", files=str(text), where=wrong)


@pytest.mark.full
def test_values_compare_as_in_a_recipe(tmp_path: Path) -> None:
    """Against a plain reading of the cells: numbers as numbers, all else as text."""
    cells = ["1", "1.0", "007", "7", "true", "True", "no", "none", "x y", "-2.5", "1e3"]
    random.Random(0).shuffle(cells)
    file = tmp_path / "cells.csv"
    file.write_text("text,some cell\n" + "".join(f"{cell},{cell}\n" for cell in cells))
    for where, expected in (
        ("some cell=1", {"1", "1.0"}),
        ("some cell=007", {"007"}),
        ("some cell=true", {"true", "True"}),
        ("some cell=no", {"no"}),
        ("some cell=x y", {"x y"}),
        ("some cell<1", {"-2.5"}),
        ("some cell>7", {"1e3"}),
        ("some cell!=none", set(cells) - {"none"}),
    ):
        found = built("csv", file=str(file), fields={"text": "text"}, where=where).examples()
        assert {one["text"] for one in found} == expected, where
