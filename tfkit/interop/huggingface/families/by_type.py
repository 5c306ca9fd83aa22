"""Base of Llama-like families whose rotary settings differ between windowed and full layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import Llama, types_of
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope, first
from tfkit.interop.huggingface.settings import ConfigJson, look


class ByType(Llama):
    """Base with rotary settings per layer type: rope_parameters has an entry for each type."""

    listed = True
    local: ClassVar[Rope] = Rope()  # rotary settings of windowed layers

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        rope = cls.rope if name == FULL else cls.local
        parameters = look(config, f"rope_parameters.{name}")
        if parameters is None:
            theta = first(config.get(cls.thetas.get(name, "rope_theta")), rope.theta)
            parameters = {"rope_theta": theta, **((look(config, "rope_scaling") or {}) if name in cls.scaled else {})}
        return rope.read(config, {"rope_theta": rope.theta, **parameters})

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        positions = {name: layer["position"] for name, layer in zip(types_of(layers), layers, strict=True)}
        any_one = next(iter(positions.values()))
        config["rope_parameters"] = {
            name: rope.write(positions.get(name, any_one), config)
            for name, rope in ((FULL, cls.rope), (SLIDING, cls.local))
        }
