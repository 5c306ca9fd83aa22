"""How keys of `model:` are declared: as fields of the Blueprint's classes, with a kind of value and a sentence.

Whatever reads, checks, spells out or explains a recipe iterates over these declarations (`tfkit/recipe/keys.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tfkit.core.bounds import WIDTH


@dataclass(frozen=True)
class SizeValue:
    """A whole number from 1 to `limit`; none: there is no such size, unless it is needed."""

    limit: int = WIDTH.most
    needed: bool = False
    words: tuple[str, ...] = ()  # that may stand in its place


@dataclass(frozen=True)
class RateValue:
    """A number of at least 0 and below 1, by default 0."""


@dataclass(frozen=True)
class FlagValue:
    """True or false, by default false."""


@dataclass(frozen=True)
class PartValue:
    """A part of a slot; its options are laid over those of the key `over`; `default` names the implied part."""

    slot: str
    over: str = ""
    needed: bool = False
    default: str = ""


@dataclass(frozen=True)
class PartsValue:
    """A part of a slot, a list of them, or none; one part is laid over that of the stack where `over_stack`."""

    slot: str
    over_stack: bool = False


@dataclass(frozen=True)
class NormValue:
    """A norm laid over that of the layers; `true` is that norm, as it is."""

    slot = "norm"


@dataclass(frozen=True)
class SectionValue:
    """A mapping of further keys, merged key by key; it is read by a rule of its own."""


@dataclass(frozen=True)
class OwnValue:
    """A value that is read by a rule of its own."""


Kind = SizeValue | RateValue | FlagValue | PartValue | PartsValue | NormValue | SectionValue | OwnValue


class Key(NamedTuple):
    """A key of the recipe language: its values, what it means, and the field of the Blueprint that holds them."""

    name: str
    kind: Kind
    sentence: str
    field: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is a number or a flag that the Blueprint holds as it is."""
        return isinstance(self.kind, RateValue | FlagValue) or (
            isinstance(self.kind, SizeValue) and not self.kind.words
        )


def key(kind: Kind, sentence: str, name: str = "") -> Any:
    """A field of a Blueprint class that is a key of the same name, or of `name`."""
    return field(metadata={"keys": (Key(name, kind, sentence),)})


def keys(*declared: Key, **options: Any) -> Any:
    """A field that several keys make; further options are those of `dataclasses.field`."""
    return field(metadata={"keys": declared}, **options)


def declared_keys(kind: type) -> dict[str, Key]:
    """The keys that a class declares, in the order of its fields."""
    found = {}
    for one in fields(kind):
        for declared in one.metadata.get("keys", ()):
            name = declared.name or one.name
            found[name] = declared._replace(name=name, field=one.name)
    return found
