"""Conversations in JSON lines."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.chat import as_example, checked
from tfkit.data.corpus.base import Record, TextRecordCorpus
from tfkit.data.corpus.lines import Lines
from tfkit.data.corpus.records import parsed


@register("corpus", "chat")
class Conversations(TextRecordCorpus):
    """One conversation per line: `{"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]}`.

    `source` is a JSON list of all messages but the last; `target` is the last message, which must be the assistant's.
    """

    fields = ("source", "target")

    class Config(TextRecordCorpus.Config):
        """The input file."""

        file: RecipePath = Field(description="a file with one conversation per line")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file = config.file

    def records(self) -> Iterator[Record]:
        """Yield each conversation. Raise DataError with the line number if one is invalid."""
        for number, line in enumerate(Lines(self.file, self.encoding), start=1):
            place = f"{self.file}:{number}"
            if not line.strip():
                continue
            value = parsed(line, place)
            if not isinstance(value, dict) or "messages" not in value:
                raise DataError(f"{place}: no field 'messages'; expected {{\"messages\": [...]}}")
            messages = checked(value, place)
            if messages[-1]["role"] != "assistant" or len(messages) < 2:
                raise DataError(
                    f"{place}: expected two or more messages, the last (the target) with the role assistant"
                )
            yield place, as_example(messages)

    def name(self) -> str:
        """Return the file path."""
        return self.file
