"""Qwen 2 (Yang et al. 2024) and Qwen 3 (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import Llama, heads_of
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended


@register("family", "qwen2")
class Qwen2(Llama):
    """Qwen 2: Llama with query, key and value biases; the upper layers may have a window."""

    model_types = ("qwen2",)
    base = merged(Llama.base, {"layer.attention.bias": ["query", "key", "value"]})
    heads = heads_of("Qwen2")
    settings = amended(
        Llama.settings,
        without=("attention_bias", "mlp_bias", "head_dim"),
        max_position_embeddings=32768,
        num_key_value_heads=32,
    )
    listed, window = True, 4096

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        below, listed = config.get("max_window_layers", 28), config.get("layer_types")
        if not config.get("use_sliding_window", False) or config.get("sliding_window", cls.window) is None:
            return [FULL] * count
        if listed:
            return super().types(config, count)
        return [SLIDING if index >= below else FULL for index in range(count)]

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["use_sliding_window"] = SLIDING in config["layer_types"]


@register("family", "qwen3")
class Qwen3(Qwen2):
    """Qwen 3: query and key norms instead of biases."""

    model_types = ("qwen3",)
    base = merged(Llama.base, {"layer.attention.qk_norm": True})
    heads = heads_of("Qwen3")
    settings = amended(
        Qwen2.settings,
        Setting("head_dim", "layer.attention.head_dim", 128),
        Setting("attention_bias", "layer.attention.bias", False),
    )
