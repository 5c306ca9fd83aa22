"""Mistral (Jiang et al. 2023), Ministral and Ministral 3 (Mistral AI 2024, 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import Llama, heads_of
from tfkit.interop.huggingface.layer_types import SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended

SIZES = (
    Setting("max_position_embeddings", "max_length", 131072),
    Setting("num_key_value_heads", "layer.attention.num_kv_heads", 8),
)


@register("family", "mistral")
class Mistral(Llama):
    """Mistral: Llama with a window in all layers."""

    model_types = ("mistral",)
    heads = heads_of("Mistral")
    settings = amended(Llama.settings, *SIZES, without=("attention_bias", "mlp_bias"))
    period = (SLIDING,)
    window: ClassVar[int | None] = 4096


@register("family", "ministral")
class Ministral(Mistral):
    """Ministral: Mistral whose config.json lists the windowed layers."""

    model_types = ("ministral",)
    heads = heads_of("Ministral")
    listed = True


@register("family", "ministral3")
class Ministral3(Mistral):
    """Ministral 3: YaRN rotary positions; scores scaled by the logarithm of the position."""

    model_types = ("ministral3",)
    heads = heads_of("Ministral3")
    settings = amended(
        Mistral.settings,
        max_position_embeddings=262144,
        head_dim=128,
        rms_norm_eps=1e-5,
    )
    rope = Rope(theta=1000000.0)
    window = None
    stretched = {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    }

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        turned = super().position(config, name)
        parameters = config.get("rope_parameters") or cls.stretched
        beta = parameters.get("llama_4_scaling_beta")
        if not beta:
            return turned
        length = parameters["original_max_position_embeddings"]
        return [turned, {"type": "log_temperature", "beta": float(beta), "length": length}]

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        position = layers[0]["position"]
        turned, *grown = position if isinstance(position, list) else [position]
        config["rope_parameters"] = cls.rope.write(turned, config)
        for part in grown:
            config["rope_parameters"]["llama_4_scaling_beta"] = part["beta"]
            config["rope_parameters"]["original_max_position_embeddings"] = part["length"]
