"""Facts about the options of parts and sections, from their type annotations: slots, paths, nested mappings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tfkit.core.component import Config
from tfkit.core.options import PathMark, Slot
from tfkit.core.registry import REGISTRY, UnknownPart
from tfkit.recipe.text.node import Node


class OptionFacts(NamedTuple):
    """Facts about an option.

    `slot` and `default` are the slot and the default name of its part ("" if it is not a part); `path` is the kind of
    file path. `sections` are its nested mappings other than parts. `has_default` is true for a default other than none.
    """

    slot: str
    default: str
    path: PathMark | None
    sections: tuple[type[BaseModel], ...]
    has_default: bool

    def schema(self, node: Node) -> type[BaseModel] | None:
        """Return the Pydantic model that validates the mapping `node` (a section or part); None for a plain value."""
        if not self.slot:
            return self.sections[0] if self.sections else None
        for section in self.sections if "type" not in node.entries else ():
            if section.model_fields.keys() & node.entries:
                return section
        return config_class(node, self.slot)


@cache
def options_of(model: type[BaseModel]) -> Mapping[str, OptionFacts]:
    """Return the options of a part or section by name."""
    return {name: _option(field) for name, field in model.model_fields.items()}


def _option(field: FieldInfo) -> OptionFacts:
    metadata = [*field.metadata, *_types_in(field.annotation)]
    slot = next((mark.slot for mark in metadata if isinstance(mark, Slot)), "")
    sections = (one for one in metadata if isinstance(one, type) and issubclass(one, BaseModel))
    return OptionFacts(
        slot,
        field.default if slot and isinstance(field.default, str) else "",
        next((mark for mark in metadata if isinstance(mark, PathMark)), None),
        tuple(one for one in sections if not issubclass(one, Config)),
        not field.is_required() and field.default is not None,
    )


def _types_in(annotation: object) -> Iterator[object]:
    if isinstance(annotation, type):
        yield annotation
    yield from getattr(annotation, "__metadata__", ())
    for argument in getattr(annotation, "__args__", ()):
        yield from _types_in(argument)


def config_class(node: Node, slot: str) -> type[Config] | None:
    """Return the Config of the part that `node` names, or None if it is unknown."""
    kind = node if isinstance(node.value, str) else node.get("type")
    if kind is None or not isinstance(kind.value, str):
        return None
    try:
        return REGISTRY.get(slot, kind.value).Config
    except UnknownPart:
        return None


def schema_at(node: Node, model: type[BaseModel] | None, loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the Pydantic model for the mapping at `loc` below `node`, which `model` validates."""
    option = None
    for step in loc:
        if isinstance(step, int):
            node = node.value[step] if isinstance(node.value, list) and step < len(node.value) else node
            model = model if option is None else option.schema(node)
        elif model is not None and step in model.model_fields and step in node.entries:
            option, node = options_of(model)[step], node.entries[step]
            model = option.schema(node)
    return model


class NamedPath(NamedTuple):
    """A file path: the value of the option of `owner` at the dotted key `at`."""

    at: str
    path: str
    mark: PathMark
    owner: BaseModel


def path_values(config: BaseModel) -> tuple[str, ...]:
    """Return the file paths in the options of a part, including nested parts."""
    return tuple(dict.fromkeys(named.path for named in named_paths(config)))


def named_paths(owner: BaseModel, at: str = "") -> Iterator[NamedPath]:
    """Yield the file paths in the options of the part or section at `at`, including nested parts."""
    for where, value, option in values_of(owner, at):
        if isinstance(value, BaseModel):
            yield from named_paths(value, where)
        elif option.path is not None and isinstance(value, str):
            yield NamedPath(where, value, option.path, owner)


def values_of(owner: BaseModel, at: str) -> Iterator[tuple[str, object, OptionFacts]]:
    """Yield the dotted key, value and facts of each option, with one entry per item of a list."""
    for name, option in options_of(type(owner)).items():
        value, place = getattr(owner, name), f"{at}.{name}"
        if isinstance(value, (list, tuple)):
            yield from ((f"{place}[{index}]", item, option) for index, item in enumerate(value))
        else:
            yield place, value, option
