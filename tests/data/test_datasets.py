"""Data sets on disk are read as the `datasets` library reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfkit.core.errors import DataError
from tfkit.data.corpus.records import Datasets

pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
ROWS = [{"pair": {"en": f"one {number}", "de": f"eins {number}"}, "id": number} for number in range(5)]
FIELDS = {"source": "pair.en", "target": "pair.de"}
WANTED = [row["pair"] for row in ROWS]


def read(folder: Path, **options: Any) -> list[dict[str, str]]:
    config = Datasets.Config.model_validate({"folder": str(folder), "fields": FIELDS, **options})
    found: list[dict[str, str]] = config.build().examples()
    assert all(Path(file).is_file() for file in config.files_read())
    return [{"en": one["source"], "de": one["target"]} for one in found]


def test_saved_data_sets_are_read_as_by_their_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(tmp_path / "one", num_shards=2)
    assert read(tmp_path / "one") == WANTED == [row["pair"] for row in datasets.load_from_disk(tmp_path / "one")]
    assert read(tmp_path / "one", limit=2) == WANTED[:2]
    splits = datasets.DatasetDict({"train": whole, "test": whole.select([3, 1])})
    splits.save_to_disk(tmp_path / "several")
    assert read(tmp_path / "several", split="train") == WANTED
    assert read(tmp_path / "several", split="test") == [WANTED[3], WANTED[1]]
    with pytest.raises(DataError, match="several splits; set split to one of train, test"):
        read(tmp_path / "several")
    with pytest.raises(DataError, match="no split 'dev'; available: train, test"):
        read(tmp_path / "several", split="dev")


def test_folders_of_parquet_files(tmp_path: Path) -> None:
    for name, rows in (("train-00000-of-00002", ROWS[:3]), ("train-00001-of-00002", ROWS[3:])):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    assert read(tmp_path) == read(tmp_path, split="train") == WANTED
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:1]), tmp_path / "test-00000-of-00001.parquet")
    assert read(tmp_path, split="test") == WANTED[:1]
    with pytest.raises(DataError, match=r"parquet: row 1: no field 'pair\.fr'"):
        read(tmp_path, split="test", fields={"source": "pair.fr", "target": "pair.de"})


def test_what_is_no_data_set_is_named(tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "gone", "gone: no such folder"), (tmp_path, "neither saved with save_to_disk")):
        with pytest.raises(DataError, match=said):
            read(folder)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
    with pytest.raises(DataError, match=r"/a\.arrow: "):
        read(tmp_path)
    (tmp_path / "a.arrow").write_text("nothing")
    with pytest.raises(DataError, match=r"a\.arrow: not a data set file"):
        read(tmp_path)
    table = pyarrow.table({"pair.en": ["a b", "c d"], "pair.de": ["e", "f"]})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    whole, offsets = (tmp_path / "a.arrow").read_bytes(), np.array([0, 3, 6], np.int32).tobytes()
    for last in (-6, 2**30):  # a text of negative length, and one far outside of the file
        damaged = whole.replace(offsets, np.array([0, 3, last], np.int32).tobytes())
        (tmp_path / "a.arrow").write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.arrow: not a data set file"):
            read(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(DataError, match="does not have the format of save_to_disk"):
        read(tmp_path)
