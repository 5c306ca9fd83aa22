"""Two files, a sentence a line, that belong together line by line."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_pairs


@register("corpus", "parallel_text")
class ParallelText(TextRecordCorpus):
    """Line n of the source file and line n of the target file are a pair."""

    class Config(TextRecordCorpus.Config):
        """The two files."""

        source: RecipePath = Field(description="a source text a line")
        target: RecipePath = Field(description="on each line the target of the source's line")

    fields = ("source", "target")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.source, self.target = config.source, config.target

    def records(self) -> Iterator[Record]:
        """The pairs; raises DataError naming both files and both counts when these differ."""
        sources, targets = read_pairs(self.source, self.target, self.encoding)
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
            file = self.target if source.strip() else self.source
            yield f"{file}:{number}", {"source": source, "target": target}

    def name(self) -> str:
        """Both files."""
        return f"{self.source} and {self.target}"
