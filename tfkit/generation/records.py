"""Prompts in JSON lines: values of named fields, and the id of the record."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from tfkit.core.errors import DataError, TfkitWarning
from tfkit.core.output import json_line
from tfkit.data.chat import checked, written
from tfkit.data.corpus.records import parsed, pick
from tfkit.data.corpus.watch import check_texts


def record_values(
    line: str, fields: Sequence[str], place: str, chat: bool = False
) -> tuple[tuple[str, ...], str | int | float | None]:
    """Return the values of `fields` in a JSON line, and the record's id or None. Raise DataError for invalid lines.

    With `chat`, a field may be a list of messages. As in training, the prompt ends before the last reply.
    """
    record = parsed(line, place)
    if chat and isinstance(record, dict) and isinstance(record.get(fields[0]), list):
        talk = checked({**record, "messages": record[fields[0]]}, place)
        if talk[-1]["role"] == "assistant" and len(talk) > 1:
            warnings.warn("the prompt ends before the last message if that is the assistant's", TfkitWarning, 2)
            talk.pop()
        record = {**record, fields[0]: written(talk)}
    values = pick(record, {name: name for name in fields}, place)
    check_texts(values, place)
    empty = [name for name, text in values.items() if not text.strip()]
    if empty:
        raise DataError(f"{place}: {' and '.join(empty)} {'are' if len(empty) > 1 else 'is'} empty")
    id_ = record.get("id")
    is_number = isinstance(id_, int | float) and not isinstance(id_, bool) and abs(id_) < math.inf
    if "id" in record and not isinstance(id_, str) and not is_number:
        raise DataError(f"{place}: id must be a text or a number, got {json_line(id_)[:40]}")
    return tuple(values.values()), id_
