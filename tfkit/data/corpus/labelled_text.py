"""Texts with a label: a file in which each line begins with its label, or a file of each."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import read_lines, read_pairs


@register("corpus", "labelled_text")
class LabelledText(TextRecordCorpus):
    """The label is the first word of the line, or the same line of the file `labels`."""

    class Config(TextRecordCorpus.Config):
        """The file of texts, and that of labels if they are apart."""

        file: RecipePath = Field(description="a text a line")
        labels: RecipePath | None = Field(None, description="a label a line; none: the first word of each text")

    fields = ("text", "label")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file, self.labels = config.file, config.labels

    def records(self) -> Iterator[Record]:
        """The texts with their labels; raises DataError when the two files have not equally many lines."""
        if self.labels is None:
            lines = read_lines(self.file, self.encoding)
            split = [line.partition(" ") for line in lines]
            labels, lines = [label for label, _, _ in split], [text for _, _, text in split]
        else:
            lines, labels = read_pairs(self.file, self.labels, self.encoding)
        for number, (text, label) in enumerate(zip(lines, labels, strict=True), start=1):
            file = self.labels if self.labels is not None and text.strip() else self.file
            yield f"{file}:{number}", {"text": text, "label": label.strip()}

    def name(self) -> str:
        """The file."""
        return self.file
