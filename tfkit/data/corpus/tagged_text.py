"""Texts with a tag for each word."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_pairs


@register("corpus", "tagged_text")
class TaggedText(TextRecordCorpus):
    """Line n of the file of tags has one tag for each word of line n of the file of texts.

    Words and tags stand in `text` and `tags` with one space between them, so that `split(" ")` gives equally many.
    """

    class Config(TextRecordCorpus.Config):
        """The two files."""

        file: RecipePath = Field(description="a text of words a line")
        tags: RecipePath = Field(description="on each line a tag for each word of the text")

    fields = ("text", "tags")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.tags = config.file, config.tags

    def records(self) -> Iterator[Record]:
        """The words and tags; raises DataError naming the line that has not equally many."""
        lines, tag_lines = read_pairs(self.file, self.tags, self.encoding)
        for number, (line, tag_line) in enumerate(zip(lines, tag_lines, strict=True), start=1):
            # only spaces and tabs part words: a no-break space belongs to its word
            words, tags = _split(line), _split(tag_line)
            if len(words) != len(tags):
                raise DataError(
                    f"{self.tags}:{number}: {len(tags)} tags, but {self.file}:{number} has {len(words)} words"
                )
            yield f"{self.file}:{number}", {"text": " ".join(words), "tags": " ".join(tags)}

    def name(self) -> str:
        """The file."""
        return self.file


def _split(line: str) -> list[str]:
    return [word for word in line.replace("\t", " ").split(" ") if word]
