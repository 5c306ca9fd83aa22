"""Picking the fields of an example out of a record of named values (JSON, Parquet)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfkit.core.errors import DataError, with_article
from tfkit.core.registry import nearest
from tfkit.data.corpus.base import Example


def parsed(line: str, place: str) -> Any:
    """Parse a line of JSON; raise DataError naming the place."""
    try:
        return json.loads(line)
    except RecursionError:
        raise DataError(f"{place}: not a JSON value (nested too deeply)") from None
    except ValueError as error:
        reason = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{place}: not a JSON value ({reason})") from None


def pick(record: Any, fields: Mapping[str, str], place: str) -> Example:
    """The example that `fields` (example field -> name in the record) asks for; raises DataError naming the place."""
    return {field: _text(_find(record, name, place), name, place) for field, name in fields.items()}


def _find(record: Any, name: str, place: str) -> Any:
    """The value called `name`, or at the end of the dotted way `name`."""
    if isinstance(record, Mapping) and name in record:
        return record[name]
    value = record
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise DataError(f"{place}: there is no field '{name}'; {_what_is_there(value, step)}")
        value = value[step]
    return value


def _what_is_there(value: Any, wanted: str) -> str:
    if not isinstance(value, Mapping):
        return f"it holds {_kind(value)}, not named values"
    hint = nearest(wanted, [str(name) for name in value])
    return f"there is: {', '.join(map(str, value)) or 'nothing'}" + (f". Did you mean '{hint}'?" if hint else "")


def _text(value: Any, name: str, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise DataError(f"{place}: field '{name}' is {_kind(value)}; a text or a number was expected")


def _kind(value: Any) -> str:
    names = {type(None): "null", list: "a list", dict: "a mapping", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), with_article(type(value).__name__))
