"""Parquet files, in which data sets are often published."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.extras import installing
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, RecordCorpus
from tfkit.data.corpus.lines import read_bytes
from tfkit.data.corpus.values import pick

ROWS = 4096  # read at once


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
        for number, row in enumerate(self._rows(), start=1):
            place = f"{self.file}: row {number}"
            yield place, pick(row, self.names, place)

    def count(self) -> int:
        """The rows that the file says it has: a few bytes can stand for millions of them."""
        rows: int = self._file.metadata.num_rows
        return rows

    def _rows(self) -> Iterator[Any]:
        """The rows, of which a few thousand are in memory at once."""
        with self._told():
            for batch in self._file.iter_batches(ROWS):
                yield from batch.to_pylist()

    @cached_property
    def _file(self) -> Any:
        with self._told():
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
            return parquet.ParquetFile(pyarrow.BufferReader(read_bytes(self.file)))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What pyarrow finds wrong within the block, or that it is not there, as DataError."""
        try:
            wrong = import_module("pyarrow").ArrowException
        except ImportError:
            raise DataError(f"{self.file}: reading Parquet needs the package pyarrow: {installing('data')}") from None
        try:
            yield
        except (wrong, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.file}: this is no Parquet file: {error}") from None

    def name(self) -> str:
        """The file."""
        return self.file
