"""One file of pairs, with tabs between the columns."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import NonNegativeInt, RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_lines


@register("corpus", "parallel_tsv")
class ParallelTsv(TextRecordCorpus):
    """Each line is a pair; columns count from 0, quotes mean nothing, every line has as many columns as the first."""

    class Config(TextRecordCorpus.Config):
        """The file and its columns; `header: true` leaves out the first line."""

        file: RecipePath = Field(description="a file of columns parted by tabs")
        source_column: NonNegativeInt = Field(0, description="number of the sources' column, from 0")
        target_column: NonNegativeInt = Field(1, description="number of the targets' column, from 0")
        header: bool = Field(False, description="the first line names the columns, and is left out")

        @model_validator(mode="after")
        def _two_columns(self) -> ParallelTsv.Config:
            if self.source_column == self.target_column:
                raise ValueError(f"source_column and target_column are both {self.source_column}")
            return self

    fields = ("source", "target")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.header = config.file, config.header
        self.source, self.target = config.source_column, config.target_column

    def records(self) -> Iterator[Record]:
        """The pairs; raises DataError naming the line that has other columns."""
        lines = read_lines(self.file, self.encoding)
        columns = lines[0].count("\t") + 1
        if columns <= max(self.source, self.target):
            raise DataError(
                f"{self.file}:1: {columns} columns, but column {max(self.source, self.target)} is asked for "
                "(they count from 0, with a tab between them)"
            )
        for number, line in enumerate(lines[self.header :], start=1 + self.header):
            cells = line.split("\t")
            if len(cells) == columns:
                yield f"{self.file}:{number}", {"source": cells[self.source], "target": cells[self.target]}
            elif line.strip() or not self.skip_empty:
                raise DataError(f"{self.file}:{number}: {len(cells)} columns, the first line has {columns}")

    def name(self) -> str:
        """The file."""
        return self.file
