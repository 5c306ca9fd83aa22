"""Bidirectional maps between keys of config.json and keys of a recipe's `model:`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfkit.core.errors import DataError, UsageError
from tfkit.core.trees import Tree

ConfigJson = Mapping[str, Any]  # content of a config.json
NEEDED = object()  # default of a required setting

# activation name in config.json -> tfkit name; export writes the first of several names
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
    """Maps a (dotted) key of config.json to one or several keys below `model:` with the same value.

    `default` applies if config.json lacks the key. `words` translates values from config.json to the recipe. If the
    value is None, the recipe's key remains unset.
    """

    config_key: str
    recipe_key: str | tuple[str, ...]
    default: object = NEEDED
    words: Mapping[Any, object] | None = None
    also: tuple[str, ...] = ()  # alternative keys in files of other versions, read only

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.recipe_key,) if isinstance(self.recipe_key, str) else self.recipe_key

    def read(self, config: ConfigJson) -> Any:
        """Return the recipe's value. Raise DataError if the config's value is missing or not supported."""
        spellings = (look(config, key, NEEDED) for key in (self.config_key, *self.also))
        value = next((entry for entry in spellings if entry is not NEEDED), self.default)
        if value is NEEDED:
            raise DataError(f"config.json: {self.config_key} is missing")
        if self.words is None or value is None:
            return value
        if value not in self.words:
            supported = ", ".join(map(str, self.words))
            raise DataError(f"config.json: {self.config_key}: {value!r} is not supported; expected {supported}")
        return self.words[value]

    def write(self, value: object) -> object:
        """Return the config's value for a recipe's value. Raise DataError if config.json cannot express it."""
        if value is None:
            return None
        if self.words is None:
            kind = bool if isinstance(self.default, bool) else (int, float) if _is_number(self.default) else object
            if not isinstance(value, kind) or (_is_number(self.default) and isinstance(value, bool)):
                raise DataError(f"{self.config_key} cannot express {value!r}")
            return value
        word = value.get("type") if isinstance(value, Mapping) else value  # a spelled-out part
        for written, read in self.words.items():
            if read == word:
                return written
        raise DataError(f"{self.config_key} cannot express {value!r}")


@dataclass(frozen=True)
class Factor(Setting):
    """A number that has no default in config.json, so the recipe must set it."""

    def write(self, value: object) -> object:
        if not _is_number(value):
            raise DataError(f"{self.config_key} cannot express {value!r}")
        return value


@dataclass(frozen=True)
class Power(Setting):
    """A number x in config.json that the recipe states as a power of x, such as 1 / x or 1 / sqrt(x)."""

    power: float = 1.0

    def read(self, config: ConfigJson) -> object:
        value = super().read(config)
        return None if value is None else float(value) ** self.power

    def write(self, value: Any) -> object:
        if value is None:
            return None
        root = float(value) ** (1 / self.power)
        whole = round(root)
        # undo the rounding errors of taking a power
        return whole if math.isclose(root, whole, rel_tol=1e-9) else root


@dataclass(frozen=True)
class Switch(Setting):
    """A flag in config.json. If it is true, the recipe's value is `on`, else its default; True stands for any part."""

    on: object = True

    def read(self, config: ConfigJson) -> object:
        return self.on if super().read(config) else None

    def write(self, value: object) -> bool:
        if self.on is True:
            return value not in (None, False)
        if value not in (None, False, self.on):
            raise DataError(f"{self.config_key} cannot express {value!r}")
        return bool(value == self.on)


def amended(
    settings: Iterable[Setting], *changes: Setting, without: Sequence[str] = (), **defaults: object
) -> tuple[Setting, ...]:
    """Return the settings with some replaced by key, some added, and the keys `without` removed.

    `defaults` changes the default values of the other settings by key.
    """
    rows = {row.config_key: row for row in settings if row.config_key not in without}
    rows |= {row.config_key: row for row in changes}
    unknown = sorted(set(defaults) - set(rows))
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: no such setting")
    return tuple(replace(row, default=defaults.get(key, row.default)) for key, row in rows.items())


@dataclass(frozen=True)
class Fixed:
    """A key of config.json of which only some values are supported; export writes the first, the default."""

    config_key: str
    values: tuple[object, ...]

    def check(self, config: ConfigJson) -> None:
        """Raise DataError for unsupported values."""
        value = look(config, self.config_key, self.values[0])
        if value not in self.values:
            allowed = " or ".join(map(repr, self.values))
            raise DataError(f"config.json: {self.config_key}: only {allowed} is supported, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def look(tree: Mapping[str, Any], dotted: str, default: object = None) -> Any:
    """Return the value at a dotted key, or `default`."""
    for key in dotted.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def put(config: Tree, dotted: str, value: object) -> None:
    """Set the value at a dotted key."""
    *path, last = dotted.split(".")
    for key in path:
        config = config.setdefault(key, {})
    config[last] = value
