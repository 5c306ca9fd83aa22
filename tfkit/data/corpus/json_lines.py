"""One JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_lines
from tfkit.data.corpus.values import pick


@register("corpus", "json_lines")
class JsonLines(TextRecordCorpus):
    """Each line is an object; `fields: {source: translation.en}` names a value or a way to it; numbers become text."""

    class Config(TextRecordCorpus.Config):
        """The file, and the name in it of each field."""

        file: RecipePath = Field(description="a file with one JSON object a line")
        fields: Fields = Field(description="the name of each field in the file, or a dotted way into it")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.names = config.file, config.fields
        self.fields = tuple(config.fields)

    def records(self) -> Iterator[Record]:
        """The objects' fields; raises DataError naming the line that is no JSON or lacks one."""
        for number, line in enumerate(read_lines(self.file, self.encoding), start=1):
            place = f"{self.file}:{number}"
            if self.skip_empty and not line.strip():
                continue
            try:
                record = json.loads(line)
            except RecursionError:
                raise DataError(f"{place}: not a JSON value (nested too deeply)") from None
            except ValueError as error:
                reason = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
                raise DataError(f"{place}: not a JSON value ({reason})") from None
            yield place, pick(record, self.names, place)

    def name(self) -> str:
        """The file."""
        return self.file
