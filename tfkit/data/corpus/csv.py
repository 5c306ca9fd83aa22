"""Comma-separated values, as spreadsheets write them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import NonNegativeInt, RecipePath
from tfkit.core.registry import nearest, register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_text

Columns = Annotated[dict[str, str | NonNegativeInt], Field(min_length=1)]


@register("corpus", "csv")
class Csv(TextRecordCorpus):
    """Each row is an example, all with equally many cells; one in quotes may hold delimiters and line breaks."""

    class Config(TextRecordCorpus.Config):
        """The file; `fields` gives each field's column, by the header's name or by number from 0."""

        file: RecipePath = Field(description="a CSV file")
        fields: Columns = Field(description="the column of each field: its name in the header, or its number from 0")
        delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(
            ",", description="the letter between two cells"
        )
        header: bool = Field(True, description="the first line names the columns")

        @model_validator(mode="after")
        def _names_need_a_header(self) -> Csv.Config:
            names = [column for column in self.fields.values() if isinstance(column, str)]
            if names and not self.header:
                raise ValueError(f"without a header a column has a number (from 0), not a name: {', '.join(names)}")
            if self.delimiter in '"\r\n':
                raise ValueError(f"{self.delimiter!r} cannot stand between cells; write ',', ';' or \"\\t\"")
            return self

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.columns = config.file, config.fields
        self.delimiter, self.header = config.delimiter, config.header
        self.fields = tuple(config.fields)

    def records(self) -> Iterator[Record]:
        """The rows' fields; raises DataError naming the line of the row that is ragged or badly quoted."""
        rows = self._rows()
        line, first = next(rows)
        columns = _numbers(self.columns, first, f"{self.file}:{line}")
        if not self.header:
            yield f"{self.file}:{line}", {field: first[column] for field, column in columns.items()}
        for line, cells in rows:
            if len(cells) == len(first):
                yield f"{self.file}:{line}", {field: cells[column] for field, column in columns.items()}
            elif cells or not self.skip_empty:
                raise DataError(f"{self.file}:{line}: {len(cells)} columns, the first row has {len(first)}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """The rows, each with the line (from 1) on which it begins."""
        lines = read_text(self.file, self.encoding).rstrip("\n").split("\n")
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=self.delimiter, strict=True)
        limit = csv.field_size_limit(sys.maxsize)
        begin = 1
        try:
            for cells in reader:
                yield begin, cells
                begin = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.file}:{begin}: the row that begins here is no CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)

    def name(self) -> str:
        """The file."""
        return self.file


def _numbers(columns: Mapping[str, str | int], first: list[str], place: str) -> dict[str, int]:
    """The number of each field's column; raises DataError for one that is not there."""
    numbers: dict[str, int] = {}
    for field, column in columns.items():
        if isinstance(column, str) and column not in first:
            hint, parted = nearest(column, first), _parted(first)
            there = ", ".join(first) + (parted or (f". Did you mean '{hint}'?" if hint else ""))
            raise DataError(f"{place}: there is no column '{column}' in the header; there is: {there}")
        numbers[field] = first.index(column) if isinstance(column, str) else column
        if numbers[field] >= len(first):
            raise DataError(
                f"{place}: {len(first)} columns, but column {column} is asked for (they count from 0){_parted(first)}"
            )
    return numbers


def _parted(first: list[str]) -> str:
    """Suggest the delimiter of a first row that has only one cell."""
    found = next((letter for letter in ("\t", ";", ",", "|") if letter in first[0]), None) if len(first) == 1 else None
    return "" if found is None else f"; the file may need delimiter: {json.dumps(found)}"
