"""Parquet files, in which data sets are often published."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import Field

from tfkit.core import files
from tfkit.core.errors import DataError, RunError
from tfkit.core.extras import installing
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, RecordCorpus
from tfkit.data.corpus.lines import bound_of_files, read_bytes
from tfkit.data.corpus.values import pick

ROWS, FEW = 4096, 16  # read at once; the same where a few are asked for
BUFFER = 2**16  # bytes


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
            if bound_of_files() is None:
                yield from _rows_of(self._file)
                return
            with files.regular(self.file) as file:  # without the pages that nobody asks for
                yield from _rows_of(import_module("pyarrow.parquet").ParquetFile(file, buffer_size=BUFFER), FEW)

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
        except RunError as error:
            raise DataError(str(error)) from None
        except (wrong, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.file}: this is no Parquet file: {error}") from None

    def name(self) -> str:
        """The file."""
        return self.file


def _rows_of(file: Any, at_once: int = ROWS) -> Iterator[Any]:
    for batch in file.iter_batches(at_once):
        yield from batch.to_pylist()
