"""Decoders that combine DeepSeek-V3's experts with other attention variants."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.deepseek import GROUPS, MIXTURE_RULES, NORMALIZED, ROUTED, Grouped
from tfkit.interop.huggingface.families.gemma import every
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    LocalTurns,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.sparse import (
    BASE,
    FEEDFORWARD,
    SHELL,
    SIGMOID,
    Sparse,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

HEAD_NORMS = merged(BASE, {"layer": {"attention": {"qk_norm": True}, "feedforward": SIGMOID}})


@register("family", "dots1")
class Dots1(Grouped):
    """dots.llm1: per-head norms of queries and keys; the upper layers may have a window."""

    model_types = ("dots1",)
    base = HEAD_NORMS
    heads = heads_of("Dots1")
    settings = (*SHELL, *ROUTED, *GROUPS, NORMALIZED)
    rules = (*ENDS, *NORMS, *ATTENTION, *MIXTURE_RULES)
    listed, window = True, 4096

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        if config.get("layer_types") or config.get("sliding_window", cls.window) is None:
            return super().types(config, count)
        below = config.get("max_window_layers", 62)
        return [SLIDING if layer >= below else FULL for layer in range(count)]


@register("family", "exaone_moe")
class ExaoneMoe(LocalTurns, Grouped):
    """K-EXAONE: three windowed rotary layers for each full layer without positions."""

    model_types = ("exaone_moe",)
    base = HEAD_NORMS
    heads = heads_of("ExaoneMoe")
    settings = (*amended(SHELL, without=("attention_bias",)), *expert_settings(), *GROUPS, NORMALIZED)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules()),
        *selection_rules("mlp", "mlp.gate"),
    )
    derived = ("sliding_window_pattern", "first_k_dense_replace")
    dense_layers, listed_dense, shared_key = 1, True, "num_shared_experts"
    ahead = True

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 4)


@register("family", "afmoe")
class Afmoe(LocalTurns, Sparse):
    """Trinity (Arcee 2025): gated head outputs, norms before and after each sublayer."""

    model_types = ("afmoe",)
    base = merged(
        HEAD_NORMS,
        {
            "layer": {
                "residual": {"type": "sandwich"},
                "attention": {"gate": {"over": "channel"}},
                "feedforward": {"router": {"normalized": True}},
            }
        },
    )
    heads = heads_of("Afmoe")
    settings = (*SHELL, *expert_settings(), Setting("route_scale", "layer.feedforward.router.scale", 1.0))
    rules = (
        *(*ENDS, *ATTENTION, *GATED, *expert_rules(router="router.gate"), *shared_rules()),
        *norm_rules(
            attention_norm="input_layernorm",
            attention_output_norm="post_attention_layernorm",
            feedforward_norm="pre_mlp_layernorm",
            feedforward_output_norm="post_mlp_layernorm",
        ),
        Rule(f"{CHECKPOINT}.self_attn.gate_proj.{{kind}}", f"{LAYER}.attention.gate.projection.{{kind}}"),
        Rule(f"{CHECKPOINT}.mlp.expert_bias", f"{FEEDFORWARD}.router.selection_bias"),
    )
    window, shared_key = 1024, "num_shared_experts"

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return (SLIDING,) * (int(config.get("global_attn_every_n_layers", 4)) - 1) + (FULL,)

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        return layer < int(config.get("num_dense_layers", 1))

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["num_dense_layers"] = list(dense).index(False) if False in dense else len(dense)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("mup_enabled"):
            override(model, {"embedding.scale": "sqrt_d_model"})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["mup_enabled"] = value_of(model, "embedding.scale") == "sqrt_d_model"
