"""SmolLM 3 (Hugging Face 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import Llama, heads_of, types_of
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, amended

UNPLACED = "_without_position"  # suffix of layer types without positions


@register("family", "smollm3")
class SmolLM3(Llama):
    """SmolLM 3: Llama without positions in every fourth layer; the others may have a window."""

    model_types = ("smollm3",)
    heads = heads_of("SmolLM3")
    settings = amended(
        Llama.settings,
        without=("head_dim",),
        max_position_embeddings=32768,
        num_key_value_heads=4,
    )
    rope, ties, listed = Rope(theta=2000000.0), True, True

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        interval = config.get("no_rope_layer_interval", 4)
        turned = config.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
        wide = not config.get("use_sliding_window", False) or config.get("sliding_window") is None
        if wide:
            types = [FULL] * count
        elif config.get("layer_types"):
            types = super().types(config, count)
        else:
            types = [FULL if turns else SLIDING for turns in turned]
        return [name if turns else name + UNPLACED for name, turns in zip(types, turned, strict=False)]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        return super().over_layer(config, name.removesuffix(UNPLACED))

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        return None if name.endswith(UNPLACED) else super().position(config, name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["use_sliding_window"] = SLIDING in types_of(layers)
        config["no_rope_layers"] = [int(layer["position"] is not None) for layer in layers]
