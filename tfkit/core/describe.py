"""Option types as text: `PositiveInt | None` is "whole number from 1, or none"."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tfkit.core.errors import with_article
from tfkit.core.options import PathMark, Slot

# larger bounds are technical limits far beyond real recipes, so they are not printed
COUNTABLE = 2**28
BOUNDS = ("gt", "ge", "lt", "le", "min_length", "max_length")
NOUNS = {"logits": "logits rule", "stop": "stop rule"}  # noun for a part, if it is not the name of the slot
# the head noun of a phrase, without its article
PLURAL = re.compile(r"^(?:an? )?(whole number|number|text|path|list|mapping|\w+(?: rule)?(?= \())")


class OptionKind(NamedTuple):
    """One alternative of an option's type, with its annotations."""

    annotation: Any
    marks: tuple[object, ...]


def in_words(field: FieldInfo) -> str:
    """Describe the values of an option: "one of relu, gelu", "whole number from 1, or none"."""
    alternatives = list(kinds(field))
    words = [word for kind in alternatives for word in _alternatives(kind)]
    if words == ["true", "false"]:
        return "true or false"
    if len(words) > 1 and all(get_origin(kind.annotation) is Literal for kind in alternatives):
        return f"one of {', '.join(words)}"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"


def limits(field: FieldInfo) -> dict[str, Any]:
    """Return the bounds of an option by Pydantic's names: gt, ge, lt, le, min_length, max_length."""
    return {name: value for kind in kinds(field) for name, value in _bounds(kind.marks).items()}


def kinds(field: FieldInfo) -> Iterator[OptionKind]:
    """Yield the alternative types of an option."""
    yield from kinds_of(field.annotation, tuple(field.metadata))


def sections(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the Pydantic models that an option accepts as mappings, except parts."""
    bare = [kind.annotation for kind in kinds(field) if _slot(kind.marks) is None]
    return [kind for kind in bare if isinstance(kind, type) and issubclass(kind, BaseModel)]


def kinds_of(annotation: object, marks: tuple[object, ...] = ()) -> Iterator[OptionKind]:
    """Yield the alternatives of an annotation, such as that of list entries, with their metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        yield from kinds_of(inner, (*marks, *_flat(more)))
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from kinds_of(member, marks)
    else:
        yield OptionKind(annotation, marks)


def _flat(marks: Sequence[object]) -> Iterator[object]:
    """Flatten metadata: `Field(ge=1)` in an annotation has nested metadata."""
    for mark in marks:
        yield from _flat(mark.metadata) if isinstance(mark, FieldInfo) else (mark,)


def _alternatives(kind: OptionKind) -> list[str]:
    """Describe one type, with an entry per choice."""
    slot = _slot(kind.marks)
    if slot is not None:
        return [f"{with_article(NOUNS.get(slot, slot))} ({'true, ' * (slot == 'norm')}a name, or options)"]
    annotation = kind.annotation
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return ["none" if word is None else str(word) for word in get_args(annotation)]
    return [_value(annotation, kind.marks)]


def _value(annotation: object, marks: tuple[object, ...]) -> str:
    """Describe a type that is neither a choice of words nor a part."""
    if annotation is int or annotation is float:
        return ("whole number" if annotation is int else "number") + _range(_bounds(marks))
    if annotation is str:
        return "path" if any(isinstance(mark, PathMark) for mark in marks) else "text" + _length(_bounds(marks))
    if annotation in (None, type(None)):
        return "none"
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (tuple, list, set, frozenset):
        fixed = len(inner) > 1 and inner[1] is not Ellipsis
        return f"list of {len(inner)} {_many(inner[0])}" if fixed else f"list of {_many(inner[0])}" if inner else "list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {_many(inner[1])}" if inner else "mapping"
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return f"mapping of {', '.join(origin.model_fields)}"
    return "any value" if annotation is Any else with_article(getattr(origin, "__name__", str(origin)))


def _many(annotation: object) -> str:
    """Describe the entries of a list or mapping in the plural: "whole numbers from 0 or texts"."""
    words = [word for kind in kinds_of(annotation) for word in _alternatives(kind)]
    return " or ".join(PLURAL.sub(r"\1s", word) for word in words)


def _slot(marks: Sequence[object]) -> str | None:
    return next((mark.slot for mark in marks if isinstance(mark, Slot)), None)


def _bounds(marks: Sequence[object]) -> dict[str, object]:
    values = ((name, getattr(mark, name, None)) for mark in marks for name in BOUNDS)
    return {name: value for name, value in values if value is not None}


def _range(bounds: Mapping[str, Any]) -> str:
    """Describe numeric bounds, omitting technical upper limits."""
    words = []
    if "ge" in bounds:
        words.append(f" from {bounds['ge']:,}")
    if "gt" in bounds:
        words.append(f" above {bounds['gt']:,}")
    if bounds.get("le", COUNTABLE) < COUNTABLE:
        words.append(f" to {bounds['le']:,}" if "ge" in bounds else f"{',' * bool(words)} at most {bounds['le']:,}")
    if "lt" in bounds:
        words.append(f"{',' * bool(words)} below {bounds['lt']:,}")
    return "".join(words)


def _length(bounds: Mapping[str, object]) -> str:
    least, most = bounds.get("min_length", 0), bounds.get("max_length")
    if most is None:
        return ""
    return f" of {most} letter{'s' * (most != 1)}" if least == most else f" of at most {most} letters"
