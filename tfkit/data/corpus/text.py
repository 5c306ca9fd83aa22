"""Running text from one file or several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from pydantic import Field

from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Encoding, Example, RecipePaths
from tfkit.data.corpus.lines import read_lines, read_text


@register("corpus", "text")
class Text(Corpus):
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
            for text in self._texts(file):
                yield {"text": text}

    def _texts(self, file: str) -> Iterator[str]:
        if self.unit == "document":
            yield read_text(file, self.encoding)
            return
        for filled, block in groupby(read_lines(file, self.encoding), key=lambda line: bool(line.strip())):
            if filled and self.unit == "line":
                yield from block
            elif filled:
                yield "\n".join(block)
