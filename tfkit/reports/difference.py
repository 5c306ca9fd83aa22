"""Differences between values: parts are compared by option, lists of parts by members; words are those of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from tfkit.core.component import Config
from tfkit.recipe.text.node import inline


class Change(NamedTuple):
    """A difference: its key, both values, and the layers or stacks that it affects, unless it affects all."""

    what: str
    before: str
    after: str
    where: str = ""


def differences(
    what: str, before: object, after: object, follows: Sequence[tuple[object, object]] = (), absent: str = "none"
) -> Iterator[Change]:
    """Yield the differences between `before` and `after` at the key `what`.

    Pairs in `follows` are skipped, because they are reported elsewhere; `absent` is the text for a value of None.
    """
    if before == after or any(pair == (before, after) for pair in follows):
        return
    if isinstance(before, BaseModel) and type(before) is type(after):
        for name in type(before).model_fields:
            yield from differences(f"{what}.{name}", getattr(before, name), getattr(after, name), follows)
    elif isinstance(before, tuple) and isinstance(after, tuple) and _holds_parts((*before, *after)):
        yield from _lists(what, before, after)
    else:
        yield Change(what, *(absent if value is None else words(value) for value in (before, after)))


def _holds_parts(values: Sequence[object]) -> bool:
    return all(isinstance(value, BaseModel) for value in values)


def _lists(what: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[Change]:
    """Compare two lists of parts by their members, or by order if the members are equal."""
    lost = tuple(part for part in before if part not in after)
    new = tuple(part for part in after if part not in before)
    if len(lost) == len(new) == 1 and type(lost[0]) is type(new[0]):
        alone = len(before) == len(after) == 1
        yield from differences(what if alone else f"{what}.{words_of_type(new[0])}", lost[0], new[0])
    else:
        pair = (lost, new) if lost or new else (before, after)
        yield Change(what, *map(words, pair))


def words_of_type(part: BaseModel) -> str:
    """Return the name of a part, or an empty string for a section."""
    return part.part.part_name if isinstance(part, Config) else ""


def words(value: object) -> str:
    """Format a value: `rotary (theta 10000, layout halves)`, `window (size 512), causal`, `none`.

    Options whose default is empty (`none`, `false`, 0, []) are omitted if unset.
    """
    if isinstance(value, BaseModel):
        options = [
            f"{name} {words(option)}"
            for name, field in type(value).model_fields.items()
            if (option := getattr(value, name)) or field.is_required() or option != field.get_default()
        ]
        return f"{words_of_type(value)} ({', '.join(options)})".strip() if options else words_of_type(value) or "{}"
    if isinstance(value, tuple | list) and _holds_parts(value):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, float):
        return inline(value).removesuffix(".0")
    return inline(dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value)
