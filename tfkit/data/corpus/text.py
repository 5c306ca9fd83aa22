"""Running text from one file or several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import Literal

from pydantic import Field

from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Encoding, Example, RecipePaths
from tfkit.data.corpus.lines import read_lines, read_text


@register("corpus", "text")
class TextCorpus(Corpus):
    """Every line, paragraph (lines with no empty line between them) or file is a text.

    Empty lines only part paragraphs and are no lines of their own; a document keeps all but its CRs before line feeds.
    """

    class Config(Corpus.Config):
        """The file or files, and what in them is one text."""

        files: RecipePaths = Field(description="a file, or a list of them")
        unit: Literal["line", "paragraph", "document"] = Field(
            "line", description="what is one text: a line, what stands between empty lines, a file"
        )
        encoding: Encoding = Field("utf-8", description="how the files write their letters: utf-8, latin-1, ...")

    fields = ("text",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.files, self.unit, self.encoding = config.files, config.unit, config.encoding

    def read(self) -> Iterator[Example]:
        """The texts, file after file."""
        for file in self.files:
            for _, text in self._texts(file):
                yield {"text": text}

    def where(self, number: int) -> str:
        """The file, and the line that the text begins on."""
        places = ((file, line) for file in self.files for line, _ in self._texts(file))
        file, line = next(islice(places, number - 1, None))
        return f"{file}:{line}"

    def name(self) -> str:
        """The file or files."""
        return ", ".join(self.files)

    def _texts(self, file: str) -> Iterator[tuple[int, str]]:
        """The texts, each with the line that it begins on."""
        if self.unit == "document":
            yield 1, read_text(file, self.encoding)
            return
        line = 1
        for filled, block in groupby(read_lines(file, self.encoding), key=lambda line: bool(line.strip())):
            lines = list(block)
            if filled and self.unit == "line":
                yield from enumerate(lines, line)
            elif filled:
                yield line, "\n".join(lines)
            line += len(lines)
