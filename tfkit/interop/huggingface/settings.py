"""Bidirectional maps between keys of config.json and of a recipe's `model:`; layer types, rotary positions."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfkit.core.bounds import ModelSection, Options, Tree
from tfkit.core.errors import DataError, Place, UsageError
from tfkit.recipe.architecture.prepare import expand, shortest
from tfkit.recipe.overlays import overlaid
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import MAPPING, from_value

FULL, SLIDING = "full_attention", "sliding_attention"  # names in config.json
KINDS = {FULL: "global", SLIDING: "local"}  # names in recipes


def set_kinds(model: Tree, types: Sequence[str], kinds: Mapping[str, Tree], once: int = 0) -> None:
    """Write layer types to `model`; `kinds` are the overrides of `layer` by type.

    If all layers have the same type, its overrides are merged into `layer`. The first `once` layers are not part of the
    repeating pattern.
    """
    used = list(dict.fromkeys(types))
    if len(used) == 1:
        model.update(overlaid("model", model, {"layer": kinds.get(used[0], {})}))
        return
    model["layers"] = {KINDS.get(name, name): kinds.get(name, {}) for name in used}
    model["pattern"] = shortest([KINDS.get(name, name) for name in types], once)


def layers_of(stack: ModelSection) -> list[Tree]:
    """Return every layer of a spelled-out stack, with the stack's `position` unless the layer sets its own."""
    kinds: Mapping[str, Tree] = stack.get("layers", {})
    pattern, _ = from_value(stack.get("pattern"), Place(MAPPING), "pattern")
    entries = expand(pattern, int(stack["num_layers"]), list(kinds), Faults())
    layers = (kinds[entry.kinds[0]] if entry.kinds else stack["layer"] for entry in entries)
    return [{"position": stack["position"], **layer} for layer in layers]


ConfigJson = Mapping[str, Any]  # content of a config.json


def with_values(values: Tree, config: ConfigJson) -> ConfigJson:
    """Return a view of `config` with other values, not a copy, so that key accesses are recorded."""
    return ChainMap(values, config)  # type: ignore[arg-type]


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


def sizes(
    length: str = "max_position_embeddings",
    width: str = "hidden_size",
    depth: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    longest: int = 2048,
) -> tuple[Setting, ...]:
    """Return the settings of a model's sizes, with the family's key names; `longest` is the default of `length`."""
    return (
        Setting("vocab_size", "vocab_size"),
        Setting(length, "max_length", longest),
        Setting(width, "d_model"),
        Setting(depth, "num_layers"),
        Setting(heads, "layer.attention.num_heads"),
    )


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


SCALED = ("llama3", "yarn", "longrope")  # scaling types with a key for the original training length


@dataclass(frozen=True)
class Rope:
    """A family's defaults for rotary positions, and how it interprets some keys.

    `partial`: heads may be rotated partially; otherwise fractions in config.json are ignored. `alpha`: if dynamic
    scaling has an alpha, it stands for a larger theta. `scores`: YaRN's mscale_all_dim scales all attention scores.
    """

    theta: float = 10000.0
    fraction: float = 1.0
    layout: str = "halves"
    clockwise: bool = False
    partial: bool = False
    alpha: bool = False
    scores: bool = False

    def read(self, config: ConfigJson, parameters: Mapping[str, object] | None = None) -> Tree:
        """Return the position part; `parameters` selects one of several rope_parameters."""
        if parameters is None:
            parameters = look(config, "rope_parameters") or look(config, "rope_scaling") or {}
        theta = first(parameters.get("rope_theta"), config.get("rope_theta"), config.get("rotary_emb_base"), self.theta)
        fraction = self.fraction
        if self.partial:
            key = "partial_rotary_factor"
            fraction = first(parameters.get(key), config.get(key), config.get("rotary_pct"), self.fraction)
        part = {"type": "rotary", "theta": float(theta), "fraction": float(fraction), "layout": self.layout}
        return {**part, "clockwise": self.clockwise, "scaling": self._scaling(parameters, config)}

    def _scaling(self, parameters: ConfigJson, config: ConfigJson) -> Tree | None:
        kind = first(parameters.get("rope_type"), parameters.get("type"), "default")
        if kind == "su" or (kind == "yarn" and "short_factor" in parameters):
            kind = "longrope"  # name in the first Phi-3 files
        if kind == "default":
            return None
        if kind == "linear":
            return {"type": "linear", "factor": float(needed(parameters, "factor"))}
        if kind == "dynamic":
            return self._dynamic(parameters, config)
        if kind == "proportional" and not self.partial:
            shares = {"fraction": "partial_rotary_factor", "factor": "factor"}
            return {"type": kind, **{own: float(first(parameters.get(key), 1.0)) for own, key in shares.items()}}
        if kind not in SCALED:
            supported = ", ".join(("default", "linear", "dynamic", "proportional", *SCALED))
            raise DataError(f"config.json: rope_type: {kind!r} is not supported; expected {supported}")
        length = first(
            config.get("original_max_position_embeddings"),
            parameters.get("original_max_position_embeddings"),
            config.get("max_position_embeddings"),
        )
        if length is None:
            raise DataError("config.json: max_position_embeddings is missing")
        factor = parameters.get("factor")
        factor = float(needed(config, "max_position_embeddings") / length if factor is None else factor)
        read = {"llama3": _llama3, "longrope": _longrope, "yarn": self._yarn}[kind]
        return {"type": kind, "original_length": int(length), **read(parameters, factor, int(length))}

    def _dynamic(self, parameters: ConfigJson, config: ConfigJson) -> Tree:
        if self.alpha and parameters.get("alpha"):
            return {"type": "ntk", "alpha": float(parameters["alpha"])}
        length = int(needed(config, "max_position_embeddings"))
        return {"type": "dynamic", "factor": float(needed(parameters, "factor")), "original_length": length}

    def _yarn(self, parameters: ConfigJson, factor: float, length: int) -> Tree:
        weights = {key: parameters.get(key) for key in ("mscale", "mscale_all_dim")}
        if self.scores:
            weights = {key: None if value is None else float(value) for key, value in weights.items()}
        elif all(weights.values()) and parameters.get("attention_factor") is None:
            own, shared = (float(parameters[key]) * 0.1 * math.log(max(factor, 1.0)) + 1 for key in weights)
            weights = {"attention_factor": own / shared}
        else:
            weights = {}
        if parameters.get("attention_factor") is not None:
            weights["attention_factor"] = float(parameters["attention_factor"])
        return {
            "factor": factor,
            "beta_fast": float(parameters.get("beta_fast") or 32),
            "beta_slow": float(parameters.get("beta_slow") or 1),
            "truncate": bool(parameters.get("truncate", True)),
            **weights,
        }

    def write(self, part: Options, config: ConfigJson) -> Tree:
        """Return the rope_parameters for a spelled-out part.

        Raise DataError if rope_parameters cannot express the part.
        """
        if (part["layout"], part["clockwise"]) != (self.layout, self.clockwise):
            raise DataError(f"config.json cannot express rotary positions with layout {part['layout']!r}")
        if not self.partial and part["fraction"] != self.fraction:
            raise DataError(f"config.json cannot express rotary positions with fraction {part['fraction']}")
        parameters: Tree = {"rope_type": "default", "rope_theta": part["theta"]}
        if self.partial:
            parameters["partial_rotary_factor"] = part["fraction"]
        scaling = part["scaling"]
        return parameters if scaling is None else parameters | self._written(scaling, config)

    def _written(self, scaling: Options, config: ConfigJson) -> Tree:
        kind = scaling["type"]
        if kind == "ntk":
            if not self.alpha:
                raise DataError("config.json cannot express a scaling of type 'ntk'")
            return {"rope_type": "dynamic", "alpha": scaling["alpha"], "factor": 1.0}
        if kind == "dynamic" and scaling["original_length"] != config["max_position_embeddings"]:
            raise DataError("config.json can express dynamic scaling only for lengths beyond max_position_embeddings")
        if kind in ("linear", "dynamic"):
            return {"rope_type": kind, "factor": scaling["factor"]}
        names = {
            "original_length": "original_max_position_embeddings",
            "fraction": "partial_rotary_factor",
            "low_factor": "low_freq_factor",
            "high_factor": "high_freq_factor",
            "short": "short_factor",
            "long": "long_factor",
        }
        if kind == "yarn" and not self.scores and scaling["mscale_all_dim"] is not None:
            raise DataError("config.json cannot express yarn scaling with mscale_all_dim")
        values = {names.get(key, key): value for key, value in scaling.items() if key != "type" and value is not None}
        return {"rope_type": kind, **values}


def with_older_keys(config: ConfigJson, thetas: Mapping[str, str], scaled: Collection[str]) -> Tree:
    """Return a config with its rotary settings as transformers 4 reads them, next to each rope_parameters.

    `thetas` maps layer types to the keys of their theta, and rope_scaling applies to the types in `scaled`. If older
    versions would compute other numbers, transformers_version names the first one that does not.
    """
    sections = {key: value for key, value in config.items() if isinstance(value, dict) and key != "rope_parameters"}
    made = {**config, **{key: with_older_keys(value, thetas, scaled) for key, value in sections.items()}}
    if not (parameters := config.get("rope_parameters")):
        return made
    kinds = parameters if FULL in parameters else {FULL: parameters}
    own, length = ("rope_theta", "partial_rotary_factor"), "original_max_position_embeddings"
    scales: Tree = {name: {key: one[key] for key in one if key not in own} for name, one in kinds.items()}
    scales = {name: None if one["rope_type"] == "default" else one for name, one in scales.items()}
    older = {key: kinds[FULL][key] for key in (*own, length) if key in kinds[FULL]} | {"rope_scaling": scales[FULL]}
    for name, one in kinds.items():
        theta = older.setdefault(thetas.get(name, "rope_theta"), one["rope_theta"])
        scaling = older["rope_scaling"] if name in scaled and FULL not in thetas else None
        if (theta, scaling) != (one["rope_theta"], scales[name]):
            made["transformers_version"] = "5.0.0"
    return (older if FULL not in thetas else {key: older[key] for key in thetas.values()}) | made


def first(*values: object) -> Any:
    """Return the first value that is not None, else None."""
    return next((value for value in values if value is not None), None)


def needed(parameters: Mapping[str, object], key: str) -> Any:
    """Return a required number of the rotary scaling. Raise DataError if it is missing."""
    if parameters.get(key) is None:
        raise DataError(f"config.json: the rotary scaling lacks {key}")
    return parameters[key]


def _llama3(parameters: Mapping[str, object], factor: float, length: int) -> Tree:
    bounds = {
        "low_factor": needed(parameters, "low_freq_factor"),
        "high_factor": needed(parameters, "high_freq_factor"),
    }
    return {"factor": factor, **{key: float(value) for key, value in bounds.items()}}


def _longrope(parameters: Mapping[str, object], factor: float, length: int) -> Tree:
    amplitude = parameters.get("attention_factor")
    if amplitude is None:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    lists = {"short": needed(parameters, "short_factor"), "long": needed(parameters, "long_factor")}
    return {**{key: [float(entry) for entry in value] for key, value in lists.items()}, "attention_factor": amplitude}
