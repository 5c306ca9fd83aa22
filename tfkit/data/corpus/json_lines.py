"""One JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Fields, Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_lines
from tfkit.data.corpus.values import parsed, pick


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
            yield place, pick(parsed(line, place), self.names, place)

    def name(self) -> str:
        """The file."""
        return self.file
