"""How the settings of two implementations correspond: a key of config.json, a key of a recipe's `model:`, both ways."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfkit.core.errors import DataError, UsageError

NEEDED = object()  # the default of a setting that a config has to give

# their names of activations; a word that stands here twice is written as the first
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "leaky_relu": "leaky_relu",
    "xielu": "xielu",
}


@dataclass(frozen=True)
class Setting:
    """`theirs` is a (dotted) key of config.json, `ours` one below `model:`, or several that have the same value.

    `default` is what theirs means where it is missing. `words` translate values, theirs to ours. `none` in theirs
    leaves ours unsaid.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any = NEEDED
    words: Mapping[Any, Any] | None = None
    also: tuple[str, ...] = ()  # other keys that files of other versions say the same with

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def read(self, config: Mapping[str, Any]) -> Any:
        """The value as a recipe says it; raises DataError for one that is missing, or that no word of ours means."""
        spellings = (look(config, key, NEEDED) for key in (self.theirs, *self.also))
        value = next((found for found in spellings if found is not NEEDED), self.default)
        if value is NEEDED:
            raise DataError(f"config.json says no {self.theirs}")
        if self.words is None or value is None:
            return value
        if value not in self.words:
            known = ", ".join(map(str, self.words))
            raise DataError(f"config.json: {self.theirs}: {value!r} is not known here; known are {known}")
        return self.words[value]

    def write(self, value: Any) -> Any:
        """Our value as theirs; raises DataError where they have no word for it, or only one of another kind."""
        if value is None:
            return None
        if self.words is None:
            kind = bool if isinstance(self.default, bool) else (int, float) if _is_number(self.default) else object
            if not isinstance(value, kind) or (_is_number(self.default) and isinstance(value, bool)):
                raise DataError(f"{self.theirs} has no word for {value!r}")
            return value
        word = value.get("type") if isinstance(value, Mapping) else value  # a part that is spelled out
        for theirs, ours in self.words.items():
            if ours == word:
                return theirs
        raise DataError(f"{self.theirs} has no word for {value!r}")


@dataclass(frozen=True)
class Factor(Setting):
    """A number that theirs always says; what ours leaves to the model has no word there."""

    def write(self, value: Any) -> Any:
        if not _is_number(value):
            raise DataError(f"{self.theirs} has no word for {value!r}")
        return value


@dataclass(frozen=True)
class Power(Setting):
    """A number of theirs that is ours to a power: 1 / x, 1 / sqrt(x)."""

    power: float = 1.0

    def read(self, config: Mapping[str, Any]) -> Any:
        value = super().read(config)
        return None if value is None else float(value) ** self.power

    def write(self, value: Any) -> Any:
        if value is None:
            return None
        found = float(value) ** (1 / self.power)
        whole = round(found)
        # what was rounded on the way here is a whole number again on the way back
        return whole if math.isclose(found, whole, rel_tol=1e-9) else found


@dataclass(frozen=True)
class Switch(Setting):
    """A flag of theirs: `on` in ours if it is true, else the default."""

    on: Any = True

    def read(self, config: Mapping[str, Any]) -> Any:
        return self.on if super().read(config) else None

    def write(self, value: Any) -> bool:
        if value not in (None, False, self.on):
            raise DataError(f"{self.theirs} has no word for {value!r}")
        return bool(value == self.on)


def amended(
    settings: Iterable[Setting], *changes: Setting, without: Sequence[str] = (), **defaults: Any
) -> tuple[Setting, ...]:
    """The settings with those of the same key replaced, others added, and the keys `without` left out.

    `defaults` are what theirs means where it is missing, by the keys of settings that change in nothing else.
    """
    rows = {row.theirs: row for row in settings if row.theirs not in without}
    rows |= {row.theirs: row for row in changes}
    unknown = sorted(set(defaults) - set(rows))
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: no setting has that key, so there is no default to change")
    return tuple(replace(row, default=defaults.get(key, row.default)) for key, row in rows.items())


@dataclass(frozen=True)
class Fixed:
    """A key of config.json that may only have one of these values, the first of which is written and the default."""

    theirs: str
    values: tuple[Any, ...]

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise DataError for another value."""
        value = look(config, self.theirs, self.values[0])
        if value not in self.values:
            allowed = " or ".join(map(repr, self.values))
            raise DataError(f"config.json: {self.theirs}: only {allowed} can be brought in, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def look(tree: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """The value at a dotted key, `default` where there is none."""
    for key in dotted.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def put(config: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the value at a dotted key of a config.json."""
    *path, last = dotted.split(".")
    for key in path:
        config = config.setdefault(key, {})
    config[last] = value
