"""Data sets on disk in the format of the `datasets` library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from pydantic import Field

from tfkit.core.errors import DataError, RunError
from tfkit.core.extras import installing
from tfkit.core.options import FolderPath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, RecordCorpus
from tfkit.data.corpus.records import pick, rows_of
from tfkit.storage import files

STATE, SPLITS = "state.json", "dataset_dict.json"  # written by save_to_disk


@register("corpus", "datasets")
class Datasets(RecordCorpus):
    """A folder saved with `save_to_disk` of the `datasets` library, or a folder of Parquet files; one row per example.

    Nothing is downloaded, and the `datasets` library need not be installed.
    """

    class Config(RecordCorpus.Config):
        """The folder, its split and the columns."""

        folder: FolderPath = Field(description="a folder saved with save_to_disk, or a folder with .parquet files")
        split: str | None = Field(None, description="the split to read (train, ...), if the folder has several")
        fields: Fields = Field(description="column of each field; a dotted path selects a nested value")

        def files_read(self) -> tuple[str, ...]:
            """Return the data files, or the folder if they cannot be listed."""
            with contextlib.suppress(DataError):
                return tuple(str(file) for file in data_files(Path(self.folder), self.split))
            return (self.folder,)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.folder, self.split, self.names = Path(config.folder), config.split, config.fields
        self.fields = tuple(config.fields)

    def records(self) -> Iterator[Record]:
        """Yield the selected columns of each row. Raise DataError if pyarrow is missing or a file is invalid."""
        for file in data_files(self.folder, self.split):
            for number, row in enumerate(_rows(file, self.names), start=1):
                place = f"{file}: row {number}"
                yield place, pick(row, self.names, place)

    def name(self) -> str:
        """Return the path of the folder or of the split."""
        return str(self.folder if self.split is None else self.folder / self.split)


def data_files(folder: Path, split: str | None) -> list[Path]:
    """Return the data files of a folder in order. Raise DataError if there are none."""
    if not folder.is_dir():
        raise DataError(f"{folder}: {'is a file' if folder.exists() else 'no such folder'}; expected a folder of data")
    found = sorted(folder.glob("*.parquet"))
    names = sorted({file.name.split("-")[0] for file in found if "-" in file.name})  # train-00000-of-00002.parquet
    try:
        if (folder / SPLITS).is_file():
            names = list(files.read_json(folder / SPLITS)["splits"])
        if split is not None and split not in names:
            raise DataError(f"{folder}: no split '{split}'; available: {', '.join(names) or 'none; remove split'}")
        if split is None and len(names) > 1:
            raise DataError(f"{folder}: several splits; set split to one of {', '.join(names)}")
        place = folder / str(split) if split is not None and (folder / SPLITS).is_file() else folder
        if (place / STATE).is_file():
            return [place / os.path.basename(one["filename"]) for one in files.read_json(place / STATE)["_data_files"]]
    except RunError as error:
        raise DataError(str(error)) from None
    except (KeyError, TypeError):
        raise DataError(f"{folder}: {SPLITS} or {STATE} does not have the format of save_to_disk") from None
    chosen = [file for file in found if split is None or file.name.split("-")[0] == split]
    if not chosen:
        raise DataError(f"{folder}: neither saved with save_to_disk ({STATE}) nor a folder with .parquet files")
    return chosen


def _rows(file: Path, fields: Mapping[str, str]) -> Iterator[object]:
    try:
        ipc, parquet = import_module("pyarrow.ipc"), import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{file}: reading data sets needs the package pyarrow: {installing('data')}") from None
    try:
        with files.regular(file) as opened:
            batches = (
                parquet.ParquetFile(opened).iter_batches() if file.suffix == ".parquet" else ipc.open_stream(opened)
            )
            yield from rows_of(batches, fields)
    except RunError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # pyarrow's errors have no common class
        raise DataError(f"{file}: not a data set file: {error}") from None
