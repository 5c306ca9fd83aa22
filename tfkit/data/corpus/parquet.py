"""Parquet files, as data sets are handed around."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, RecordCorpus
from tfkit.data.corpus.lines import read_bytes
from tfkit.data.corpus.values import pick


@register("corpus", "parquet")
class Parquet(RecordCorpus):
    """Each row is an example; `fields: {source: translation.en}` names a column, or a way into one."""

    class Config(RecordCorpus.Config):
        """The file, and the name in it of each field."""

        file: RecipePath = Field(description="a Parquet file")
        fields: Fields = Field(description="the name of each field in the file, or a dotted way into it")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.names = config.file, config.fields
        self.fields = tuple(config.fields)

    def records(self) -> Iterator[Record]:
        """The rows' fields, numbered from 1; raises DataError without pyarrow and for a file that is no Parquet."""
        file = self._open()
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                place = f"{self.file}: row {number}"
                yield place, pick(row, self.names, place)

    def _open(self) -> Any:
        try:
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError:
            raise DataError(f'{self.file}: reading Parquet needs pyarrow: pip install "tfkit[data]"') from None
        data = read_bytes(self.file)
        try:
            return parquet.ParquetFile(pyarrow.BufferReader(data))
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.file}: this is no Parquet file: {error}") from None

    def name(self) -> str:
        """The file."""
        return self.file
