"""Treebanks in CoNLL-U: a word a line, an empty line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_lines

_COLUMNS = {"lemma": 2, "upos": 3, "xpos": 4, "features": 5, "relation": 7}


@register("corpus", "conllu")
class Conllu(TextRecordCorpus):
    """Each sentence is a text of words with one column of the treebank as tags (universaldependencies.org/format).

    Words and tags stand in `text` and `tags` with one space between them; a space inside a word becomes a no-break
    space. Comments, ranges of words (`3-4`) and words left out in the sentence (`5.1`) are no words.
    """

    class Config(TextRecordCorpus.Config):
        """The file, and the column that gives the tags."""

        file: RecipePath = Field(description="a CoNLL-U file")
        column: Literal["lemma", "upos", "xpos", "features", "relation"] = Field(
            "upos", description="the column that gives the tags"
        )

    fields = ("text", "tags")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.column = config.file, _COLUMNS[config.column]

    def records(self) -> Iterator[Record]:
        """The sentences; raises DataError naming the line that has not ten columns."""
        lines = enumerate(read_lines(self.file, self.encoding), start=1)
        for filled, block in groupby(lines, key=lambda line: bool(line[1].strip())):
            if not filled:
                continue
            sentence = list(block)
            cells = [self._cells(number, line) for number, line in sentence if not line.startswith("#")]
            words = [row for row in cells if row[0].isdigit()]
            text = " ".join(row[1].replace(" ", "\u00a0") for row in words)
            tags = " ".join(row[self.column].replace(" ", "\u00a0") for row in words)
            yield f"{self.file}:{sentence[0][0]}", {"text": text, "tags": tags}

    def _cells(self, number: int, line: str) -> list[str]:
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(f"{self.file}:{number}: {len(cells)} columns, CoNLL-U has 10 with a tab between them")
        return cells

    def name(self) -> str:
        """The file."""
        return self.file
