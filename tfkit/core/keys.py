"""Declarations of the keys of `model:`: fields of the Blueprint's classes with a kind of value and a description.

All code that parses, checks, resolves or explains a recipe iterates over these declarations (`tfkit/recipe/keys.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tfkit.core.bounds import WIDTH


@dataclass(frozen=True)
class SizeValue:
    """Integer from 1 to `limit`, or none unless it is `needed`."""

    limit: int = WIDTH.most
    needed: bool = False
    words: tuple[str, ...] = ()  # allowed instead of a number


@dataclass(frozen=True)
class RateValue:
    """Number in [0, 1), 0 by default."""


@dataclass(frozen=True)
class FlagValue:
    """Boolean, false by default."""


@dataclass(frozen=True)
class PartValue:
    """A part of a slot, merged over the part that the key `over` sets; `default` is used if the key is missing."""

    slot: str
    over: str = ""
    needed: bool = False
    default: str = ""


@dataclass(frozen=True)
class PartsValue:
    """Part of a slot, a list of parts, or none."""

    slot: str


@dataclass(frozen=True)
class NormValue:
    """Norm merged over the norm of the layers; `true` selects the norm of the layers unchanged."""

    slot = "norm"


@dataclass(frozen=True)
class SectionValue:
    """Mapping of further keys, merged key by key and parsed by a separate rule."""


@dataclass(frozen=True)
class OwnValue:
    """Value parsed by a separate rule."""


Kind = SizeValue | RateValue | FlagValue | PartValue | PartsValue | NormValue | SectionValue | OwnValue


class Key(NamedTuple):
    """Key of the recipe language: its values, its description, and the Blueprint field that holds it."""

    name: str
    kind: Kind
    sentence: str
    field: str = ""

    @property
    def is_plain(self) -> bool:
        """True for a number or flag that the Blueprint stores unchanged."""
        return isinstance(self.kind, RateValue | FlagValue) or (
            isinstance(self.kind, SizeValue) and not self.kind.words
        )


def key(kind: Kind, sentence: str, name: str = "") -> Any:
    """Declare a Blueprint field as a key of the same name, or `name`."""
    return field(metadata={"keys": (Key(name, kind, sentence),)})


def keys(*declared: Key, **options: Any) -> Any:
    """Declare a Blueprint field for several keys; further options are passed to `dataclasses.field`."""
    return field(metadata={"keys": declared}, **options)


def declared_keys(kind: type) -> dict[str, Key]:
    """Return the declared keys of a class in the order of its fields."""
    declarations = {}
    for one in fields(kind):
        for declared in one.metadata.get("keys", ()):
            name = declared.name or one.name
            declarations[name] = declared._replace(name=name, field=one.name)
    return declarations
