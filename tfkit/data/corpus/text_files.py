"""Corpora in text files: plain, parallel, labelled and tagged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, groupby, islice
from typing import Literal

from pydantic import Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import NonNegativeInt, PositiveInt, RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Encoding, Example, RecipePaths, Record, TextRecordCorpus
from tfkit.data.corpus.fasta import refuse_fasta
from tfkit.data.corpus.lines import Lines, read_pairs, read_text


@register("corpus", "text")
class TextCorpus(Corpus):
    """Plain text: one example per line, paragraph (consecutive non-empty lines) or file.

    Empty lines separate paragraphs and yield no example. Documents are kept whole, with LF line endings.
    """

    class Config(Corpus.Config):
        files: RecipePaths = Field(description="a file, or a list of files")
        unit: Literal["line", "paragraph", "document"] = Field(
            "line", description="unit of text: a line, a paragraph (separated by empty lines) or a whole file"
        )
        encoding: Encoding = Field("utf-8", description="text encoding of the files: utf-8, latin-1, ...")

    running = True
    fields = ("text",)
    config: Config

    def read(self) -> Iterator[Example]:
        for file in self.config.files:
            for _, text in self._texts(file):
                yield {"text": text}

    def place(self, number: int) -> str:
        places = ((file, line) for file in self.config.files for line, _ in self._texts(file))
        file, line = next(islice(places, number - 1, None))
        return f"{file}:{line}"

    def name(self) -> str:
        return ", ".join(self.config.files)

    def _texts(self, file: str) -> Iterator[tuple[int, str]]:
        """Yield each text with the number of its first line."""
        refuse_fasta(file, Lines(file, self.config.encoding))
        if self.config.unit == "document":
            yield 1, read_text(file, self.config.encoding)
            return
        numbered = enumerate(Lines(file, self.config.encoding), start=1)
        if self.config.unit == "line":
            yield from ((number, line) for number, line in numbered if line.strip())
            return
        for filled, block in groupby(numbered, key=lambda line: bool(line[1].strip())):
            if filled:
                (number, first), *others = block
                yield number, "\n".join([first, *(line for _, line in others)])


FASTTEXT = "__label__"  # fastText's prefix of labels


@register("corpus", "labelled_text")
class LabelledText(TextRecordCorpus):
    """Labelled lines: the label is the first word of a line, or the line of the file `labels` with the same number.

    A space or a tab ends the first word.
    """

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a file with one text per line")
        labels: RecipePath | None = Field(
            None, description="a file with one label per line; none: the first word of each text"
        )

    fields = ("text", "label")
    config: Config

    def records(self) -> Iterator[Record]:
        refuse_fasta(self.file, Lines(self.file, self.encoding))
        labels = self.config.labels
        if labels is None:
            pairs: Iterator[tuple[str, ...]] = map(self._parted, Lines(self.file, self.encoding))
        else:
            pairs = read_pairs(self.file, labels, self.encoding)
        for number, (text, label) in enumerate(pairs, start=1):
            file = labels if labels is not None and text.strip() else self.file
            if label.startswith(FASTTEXT) and text.startswith(FASTTEXT):
                raise DataError(f"{file}:{number}: has several labels; a text has one")
            yield f"{file}:{number}", {"text": text, "label": label.strip()}

    @staticmethod
    def _parted(line: str) -> tuple[str, str]:
        """Split a line after its first word into text and label."""
        label, *text = re.split("[ \t]", line, maxsplit=1)
        return "".join(text), label


@register("corpus", "parallel_text")
class ParallelText(TextRecordCorpus):
    """Parallel text: line n of the source file and line n of the target file are a pair."""

    class Config(TextRecordCorpus.Config):
        source: RecipePath = Field(description="a file with one source text per line")
        target: RecipePath = Field(description="a file with one target text per line")

    fields = ("source", "target")
    config: Config

    def records(self) -> Iterator[Record]:
        pairs = read_pairs(self.config.source, self.config.target, self.encoding)
        for number, (source, target) in enumerate(pairs, start=1):
            file = self.config.target if source.strip() else self.config.source
            yield f"{file}:{number}", {"source": source, "target": target}

    def name(self) -> str:
        return f"{self.config.source} and {self.config.target}"


@register("corpus", "parallel_tsv")
class ParallelTsv(TextRecordCorpus):
    """Tab-separated pairs, one per line, without quoting; all lines must have the same number of columns."""

    class Config(TextRecordCorpus.Config):
        """The file and its columns; `header: true` skips the first line."""

        file: RecipePath = Field(description="a file with tab-separated columns")
        source_column: NonNegativeInt = Field(0, description="index of the source column, from 0")
        target_column: NonNegativeInt = Field(1, description="index of the target column, from 0")
        header: bool = Field(False, description="skip the first line, which names the columns")

        @model_validator(mode="after")
        def _two_columns(self) -> ParallelTsv.Config:
            if self.source_column == self.target_column:
                raise ValueError(
                    f"source_column and target_column are both {self.source_column}; use different columns"
                )
            return self

    fields = ("source", "target")
    config: Config

    def records(self) -> Iterator[Record]:
        lines = enumerate(Lines(self.file, self.encoding), start=1)
        first, source, target = next(lines), self.config.source_column, self.config.target_column
        columns = first[1].count("\t") + 1
        if columns <= max(source, target):
            raise DataError(
                f"{self.file}:1: {columns} columns, but column {max(source, target)} is selected "
                "(columns are counted from 0 and separated by tabs)"
            )
        for number, line in lines if self.config.header else chain([first], lines):
            cells = line.split("\t")
            if len(cells) == columns:
                yield f"{self.file}:{number}", {"source": cells[source], "target": cells[target]}
            elif line.strip() or not self.config.skip_empty:
                raise DataError(f"{self.file}:{number}: {len(cells)} columns, but the first line has {columns}")


@register("corpus", "tagged_text")
class TaggedText(TextRecordCorpus):
    """Tagged text: line n of the tag file has one tag for each word of line n of the text file.

    In `text` and `tags`, words and tags are separated by single spaces, so `split(" ")` aligns them.
    """

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a file with one text per line")
        tags: RecipePath = Field(description="a file with one line of tags per text, one tag per word")

    fields = ("text", "tags")
    config: Config

    def records(self) -> Iterator[Record]:
        pairs = read_pairs(self.file, self.config.tags, self.encoding)
        for number, (line, tag_line) in enumerate(pairs, start=1):
            # words are separated by spaces and tabs only, not by no-break spaces
            words, tags = _split(line), _split(tag_line)
            if len(words) != len(tags):
                raise DataError(
                    f"{self.config.tags}:{number}: {len(tags)} tags, but {self.file}:{number} has {len(words)} words"
                )
            yield f"{self.file}:{number}", {"text": " ".join(words), "tags": " ".join(tags)}


def _split(line: str) -> list[str]:
    return [word for word in line.replace("\t", " ").split(" ") if word]


_COLUMNS = {"lemma": 2, "upos": 3, "xpos": 4, "features": 5, "relation": 7}


@register("corpus", "conllu")
class Conllu(TextRecordCorpus):
    """CoNLL-U: one sentence per example, with a treebank column as tags (universaldependencies.org/format).

    In `text` and `tags`, words and tags are separated by single spaces; a space within a word becomes a no-break space.
    Comments, multiword tokens (`3-4`) and empty nodes (`5.1`) are skipped. With a number as `column`, the file has any
    number of columns, the first of which holds the words (CoNLL-2003); lines of `-DOCSTART-` are skipped.
    """

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a CoNLL-U file, or another file with one word per line")
        column: Literal["lemma", "upos", "xpos", "features", "relation"] | PositiveInt = Field(
            "upos", description="column to use as tags, or its index from 0, if the file is not CoNLL-U"
        )

    fields = ("text", "tags")
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.column = config.column
        self._width = 0  # columns of a file that is not CoNLL-U

    def records(self) -> Iterator[Record]:
        lines = enumerate(Lines(self.file, self.encoding), start=1)
        for filled, block in groupby(lines, key=lambda line: bool(line[1].strip())):
            sentence = list(block) if filled else []
            rows = [row for number, line in sentence if (row := self._row(number, line))]
            if rows:
                joined = [" ".join(cell.replace(" ", "\u00a0") for cell in cells) for cells in zip(*rows, strict=True)]
                yield f"{self.file}:{sentence[0][0]}", dict(zip(self.fields, joined, strict=True))

    def _row(self, number: int, line: str) -> tuple[str, str] | None:
        """Return the word and the tag of a line, or None if it has none."""
        is_plain = isinstance(self.column, int)
        cells = _split(line) if is_plain and "\t" not in line else line.split("\t")
        if line.startswith("#") and not (is_plain and len(cells) == self._width and "=" not in cells):
            return None
        if is_plain and cells[0] == "-DOCSTART-":
            return None
        if isinstance(self.column, int):
            self._width = self._width or len(cells)
            if len(cells) == self._width > self.column:
                return cells[0], cells[self.column]
            raise DataError(f"{self.file}:{number}: {len(cells)} columns, not {max(self._width, self.column + 1)}")
        if len(cells) != 10:
            hint = "set column to an index for other files (CoNLL-2003: 3)"
            raise DataError(f"{self.file}:{number}: {len(cells)} columns; CoNLL-U has 10, separated by tabs; {hint}")
        return (cells[1], cells[_COLUMNS[self.column]]) if cells[0].isdigit() else None
