"""Language models of vision-language models."""

from __future__ import annotations

from typing import Any

from .parity import Row
from .rows_experts import FACTORS, MANY, MIXTURE, TYPES
from .rows_llamas import TINY


def text(family: str, name: str, settings: dict[str, Any], model: str = "TextModel", **more: Any) -> Row:
    """A row of a language model."""
    return Row(family, f"{name}TextConfig", f"{name}{model}", settings, **more)


def sections(*pairs: int, **rope: Any) -> dict[str, Any]:
    """Settings of a rotation whose pairs of channels follow one of three axes."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": list(pairs), **rope}}


BY_TYPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 300.0}, "full_attention": None}
ROWS = (
    text("qwen2_vl_text", "Qwen2VL", {**TINY, **sections(2, 1, 1)}),
    text("qwen2_5_vl_text", "Qwen2_5_VL", {
        **TINY, **sections(2, 1, 1), "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    }),
    text("qwen3_vl_text", "Qwen3VL", {**TINY, **sections(2, 1, 1), "head_dim": 12, "attention_bias": True}),
    text("glm4v_text", "Glm4v", {**TINY, **sections(1, 1, 0, partial_rotary_factor=0.5)}),
    text("glm4v_moe_text", "Glm4vMoe", {
        **MIXTURE, **sections(1, 1, 1, partial_rotary_factor=0.5), "num_key_value_heads": 2, "head_dim": 12,
    }),
    text("qwen3_vl_moe_text", "Qwen3VLMoe", {
        **MANY, **sections(2, 2, 2), "head_dim": 12, "mlp_only_layers": [1], "attention_bias": True,
    }),
    text("hunyuan_vl_text", "HunYuanVL", {**TINY, **sections(3, 2, 1), "head_dim": 12}),
    text("granite_docling_text", "GraniteDocling", {**TINY, **FACTORS}),
    text("cohere_compass_text", "CohereCompass", {**TINY, "rope_parameters": {"full_attention": {"rope_theta": 99.0}}},
         "ForCausalLM", label="cohere_compass_text-unscaled"),
    text("cohere_compass_text", "CohereCompass", {
        **TINY, "num_hidden_layers": 5, "sliding_window": 5, "layer_types": TYPES, "rope_parameters": BY_TYPE,
        "logit_scale": 0.3,
    }, "ForCausalLM"),
)  # fmt: skip
