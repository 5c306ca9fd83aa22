"""Metadata of option types: the slot of a part, paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tfkit.core.component import Config
from tfkit.core.options import PathMark, Slot
from tfkit.core.registry import REGISTRY, UnknownPart
from tfkit.recipe.text.node import Node


def config_class(node: Node, slot: str) -> type[Config] | None:
    """Return the Config of the part named by `node`, None if unknown."""
    name: Any = node.value
    if isinstance(node.value, dict):
        kind = node.value.get("type")
        name = kind.value if kind is not None else None
    if not isinstance(name, str):
        return None
    try:
        return REGISTRY.get(slot, name).Config
    except UnknownPart:
        return None


def marks(field: FieldInfo) -> Iterator[Any]:
    """Yield the metadata of an option's type, including that within `X | None` and `tuple[X, ...]`."""
    yield from field.metadata
    pending = [field.annotation]
    while pending:
        annotation: Any = pending.pop()
        yield from getattr(annotation, "__metadata__", ())
        pending.extend(getattr(annotation, "__args__", ()))


class NamedPath(NamedTuple):
    """A path in an option of `owner`, at the dotted path `at`."""

    at: str
    path: str
    mark: PathMark
    owner: BaseModel


def path_values(config: BaseModel) -> tuple[str, ...]:
    """Return the paths in the options of a part, including nested parts."""
    return tuple(dict.fromkeys(found.path for found in named_paths(config)))


def named_paths(owner: BaseModel, at: str = "") -> Iterator[NamedPath]:
    """Yield the paths in a part or section at `at`, each with its place."""
    for name, field in type(owner).model_fields.items():
        mark = next((mark for mark in marks(field) if isinstance(mark, PathMark)), None)
        value, place = getattr(owner, name), f"{at}.{name}"
        several = isinstance(value, (list, tuple))
        for index, one in enumerate(value if several else (value,)):
            where = f"{place}[{index}]" if several else place
            if isinstance(one, BaseModel):
                yield from named_paths(one, where)
            elif mark is not None and isinstance(one, str):
                yield NamedPath(where, one, mark, owner)


def types_in(annotation: Any) -> Iterator[type]:
    """Yield the classes within an annotation."""
    if isinstance(annotation, type):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from types_in(argument)


def section_beside(node: Node, field: FieldInfo) -> type[BaseModel] | None:
    """Return the section meant by a mapping without a type, for an option that is a part or a section."""
    if not isinstance(node.value, dict) or "type" in node.value:
        return None
    sections = (one for one in types_in(field.annotation) if issubclass(one, BaseModel) and not issubclass(one, Config))
    return next((one for one in sections if one.model_fields.keys() & node.value), None)


def model_at(node: Node, model: type[BaseModel] | None, loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the schema of the mapping at `loc` below `node`, whose schema is `model`."""
    for step in loc:
        if isinstance(step, int):
            node = node.value[step] if isinstance(node.value, list) and step < len(node.value) else node
            continue
        if (
            model is None
            or step not in model.model_fields
            or not isinstance(node.value, dict)
            or step not in node.value
        ):
            continue
        field, node = model.model_fields[step], node.value[step]
        model = _model_of(node, field)
    return model


def _model_of(node: Node, field: FieldInfo) -> type[BaseModel] | None:
    slots = [mark.slot for mark in marks(field) if isinstance(mark, Slot)]
    if slots and (section := section_beside(node, field)) is not None:
        return section
    if slots:
        inner = node.value[0] if isinstance(node.value, list) and node.value else node
        return config_class(inner, slots[0])
    return next((kind for kind in types_in(field.annotation) if issubclass(kind, BaseModel)), None)
