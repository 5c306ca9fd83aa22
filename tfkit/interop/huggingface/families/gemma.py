"""Gemma (2024), Gemma 2 (2024), Gemma 3 (2025) and VaultGemma (2025), by the Gemma team."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.by_type import ByType
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    GATED,
    Llama,
    head_width,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope, first
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Power, Setting, amended

TANH = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}  # if a value has several names, export writes the first
FIRST_WORDS = {**TANH, "gelu": "gelu_tanh"}  # early Gemma files write gelu but mean gelu_tanh


@register("family", "gemma")
class Gemma(Llama):
    """Gemma: embeddings scaled by sqrt(d_model), norm weights offset by 1, GEGLU, a tied head."""

    model_types = ("gemma",)
    base = merged(
        Llama.base,
        {
            "embedding": {"scale": "sqrt_d_model"},
            "layer": {"norm": {"weight_offset": 1.0}, "feedforward": {"activation": "gelu_tanh"}},
        },
    )
    heads = heads_of("Gemma")
    settings = amended(
        Llama.settings,
        Setting("hidden_act", "layer.feedforward.activation", "gelu_pytorch_tanh", FIRST_WORDS),
        without=("mlp_bias",),
        max_position_embeddings=8192,
        num_key_value_heads=16,
        head_dim=256,
    )
    fixed: ClassVar[tuple[Fixed, ...]] = (Fixed("use_bidirectional_attention", (None, False)),)
    ties = True


@register("family", "gemma2")
class Gemma2(Gemma):
    """Gemma 2: norms before and after each sublayer, soft-capped scores and logits, a window in every other layer."""

    model_types = ("gemma2",)
    base = merged(Gemma.base, {"layer.residual.type": "sandwich"})
    heads = heads_of("Gemma2")
    settings = amended(
        Gemma.settings,
        Setting("hidden_activation", "layer.feedforward.activation", "gelu_pytorch_tanh", TANH),
        Power("query_pre_attn_scalar", "layer.attention.scale", 256, power=-0.5),
        Setting("attn_logit_softcapping", "layer.attention.softcap", 50.0),
        without=("hidden_act",),
        num_key_value_heads=4,
    )
    head_settings = (Setting("final_logit_softcapping", "head.softcap", 30.0),)
    rules = (
        *ENDS,
        *norm_rules(
            attention_norm="input_layernorm",
            attention_output_norm="post_attention_layernorm",
            feedforward_norm="pre_feedforward_layernorm",
            feedforward_output_norm="post_feedforward_layernorm",
        ),
        *ATTENTION,
        *GATED,
    )
    listed, period, window = True, (SLIDING, FULL), 4096

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if config["query_pre_attn_scalar"] is None:
            config["query_pre_attn_scalar"] = head_width(model)


@register("family", "vaultgemma")
class VaultGemma(Gemma2):
    """VaultGemma: pre-norm Gemma 2, trained with differential privacy."""

    model_types = ("vaultgemma",)
    base = Gemma.base
    heads = heads_of("VaultGemma")
    rules = (
        *ENDS,
        *norm_rules(attention_norm="input_layernorm", feedforward_norm="pre_feedforward_layernorm"),
        *ATTENTION,
        *GATED,
    )
    fixed = ()


@register("family", "gemma3")
class Gemma3(ByType, Gemma2):
    """Gemma 3, text model: query and key norms, five windowed layers per full layer, a theta for each layer type."""

    model_types = ("gemma3_text",)
    base = merged(Gemma2.base, {"layer.attention.qk_norm": True})
    heads = {"Gemma3ForCausalLM": {"head": {"type": "language_model"}}, "Gemma3TextModel": {"head": "none"}}
    settings = amended(Gemma2.settings, without=("attn_logit_softcapping",), max_position_embeddings=131072)
    fixed = (*Gemma2.fixed, Fixed("attn_logit_softcapping", (None,)))  # ignored by the implementation
    head_settings = (Setting("final_logit_softcapping", "head.softcap", None),)
    rope, local, thetas = Rope(theta=1000000.0), Rope(), {SLIDING: "rope_local_base_freq"}

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 6)


def every(config: ConfigJson, default: int) -> tuple[str, ...]:
    """Return one period of layer types: `sliding_window_pattern` layers, all windowed except the last."""
    count = int(first(config.get("sliding_window_pattern"), default))
    return (*[SLIDING] * (count - 1), FULL)
