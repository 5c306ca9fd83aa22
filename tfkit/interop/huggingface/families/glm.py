"""GLM-4 (Zeng et al. 2024) and GLM-4-0414 (Zhipu AI 2025)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    NORMS,
    Llama,
    feedforward_rules,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.phi import GATE_UP
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import Setting, amended
from tfkit.interop.huggingface.tensors import Rule

BIASES = {True: ["query", "key", "value"], False: False}
FEEDFORWARD = (Rule(f"{CHECKPOINT}.mlp.gate_up_proj.{{kind}}", GATE_UP), *feedforward_rules(down="down_proj"))


@register("family", "glm")
class Glm(Llama):
    """GLM-4: interleaved rotation of half of each head; query, key and value biases; gate and up in one matrix."""

    model_types = ("glm",)
    heads = heads_of("Glm")
    settings = amended(
        Llama.settings,
        Setting("attention_bias", "layer.attention.bias", True, BIASES),
        without=("mlp_bias",),
        max_position_embeddings=131072,
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=1.5625e-7,
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *FEEDFORWARD)
    rope = Rope(fraction=0.5, layout="interleaved", partial=True)


@register("family", "glm4")
class Glm4(Glm):
    """GLM-4-0414: GLM-4 with norms before and after each sublayer."""

    model_types = ("glm4",)
    base = merged(Glm.base, {"layer.residual.type": "sandwich"})
    heads = heads_of("Glm4")
    rules = (
        *ENDS,
        *norm_rules(
            attention_norm="input_layernorm",
            attention_output_norm="post_self_attn_layernorm",
            feedforward_norm="post_attention_layernorm",
            feedforward_output_norm="post_mlp_layernorm",
        ),
        *ATTENTION,
        *FEEDFORWARD,
    )
