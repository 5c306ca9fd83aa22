"""Conversion of rotary positions between config.json (keys of transformers 5 or older) and a recipe."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tfkit.core.errors import DataError
from tfkit.core.trees import Options, Tree
from tfkit.interop.huggingface.layer_types import FULL
from tfkit.interop.huggingface.settings import ConfigJson, look

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
        if kind not in SCALED:
            supported = ", ".join(("default", "linear", "dynamic", *SCALED))
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
