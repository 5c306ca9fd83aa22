"""DeepSeek-V2 and V3 (2024), MiniCPM3, and decoders with their latent attention or sigmoid experts."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.gemma import every
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    BIASES,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    Llama,
    LocalTurns,
    heads_of,
    sandwich_rules,
)
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    FEEDFORWARD,
    SHELL,
    SIGMOID,
    FirstDense,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, Switch, amended
from tfkit.interop.huggingface.tensors import Rule, read_only

LATENT: Tree = {"type": "latent", "norm": {"type": "rms_norm", "eps": 1e-6}}  # config.json files do not contain eps
RANKS = (
    Setting("q_lora_rank", "layer.attention.query_rank", None),
    Setting("kv_lora_rank", "layer.attention.kv_rank", 512),
    Setting("qk_nope_head_dim", "layer.attention.head_dim", 128),
    Setting("qk_rope_head_dim", "layer.attention.rotary_head_dim", 64),
    Setting("v_head_dim", "layer.attention.value_head_dim", 128),
)
# keys of Llama's settings for the heads, which latent attention replaces
BY_HEAD = ("num_key_value_heads", "head_dim", "attention_bias")
LATENT_RULES = tuple(
    Rule(f"{CHECKPOINT}.self_attn.{checkpoint}.{{kind}}", f"{LAYER}.attention.{own}.{{kind}}")
    for checkpoint, own in (
        ("q_a_proj", "query_down"),
        ("q_a_layernorm", "query_norm"),
        ("q_b_proj", "query_up"),
        ("q_proj", "query"),
        ("kv_a_proj_with_mqa", "key_value_down"),
        ("kv_a_layernorm", "key_value_norm"),
        ("kv_b_proj", "key_value_up"),
        ("o_proj", "output"),
    )
)
GROUPS = (
    Setting("n_group", "layer.feedforward.router.num_groups", None),
    Setting("topk_group", "layer.feedforward.router.active_groups", None),
    Setting("routed_scaling_factor", "layer.feedforward.router.scale", 1.0),
)
NORMALIZED = Setting("norm_topk_prob", "layer.feedforward.router.normalized", True)
ROUTED = expert_settings("n_routed_experts")
EVERY_LAYER = Fixed("moe_layer_freq", (1,))  # experts in every layer after the dense ones
MIXTURE_RULES = (*GATED, *expert_rules(), *shared_rules(), *selection_rules("mlp.gate"))


class LatentShell(Llama):
    """Llama with latent attention."""

    rope = Rope(layout="interleaved", scores=True)
    derived: ClassVar[tuple[str, ...]] = ("num_key_value_heads", "head_dim", "qk_head_dim")
    either: ClassVar[bool] = False  # True if rope_interleave selects the rotary layout

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        attention = model["layer"]["attention"]
        down = ["query_down"] if config.get("q_lora_rank") is not None else []
        attention["bias"] = [*down, "key_value_down", "output"] if config.get("attention_bias") else False
        if attention.get("value_head_dim") == attention["head_dim"]:
            del attention["value_head_dim"]
        super().to_recipe(model, config)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        position = super().position(config, name)
        interleaved = config.get("rope_interleave") if cls.either else None
        return position if interleaved is None else {**position, "layout": "interleaved" if interleaved else "halves"}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["attention_bias"] = bool(value_of(model, "layer.attention.bias"))
        config["num_key_value_heads"] = config["num_attention_heads"]
        config["q_lora_rank"] = value_of(model, "layer.attention.query_rank")
        config["v_head_dim"] = config["v_head_dim"] or config["qk_nope_head_dim"]

    @classmethod
    def write_positions(cls, config: Tree, layers: Any) -> None:
        position = layers[0]["position"]
        if cls.either:
            config["rope_interleave"] = position["layout"] == "interleaved"
            position = {**position, "layout": cls.rope.layout}
        config["rope_parameters"] = cls.rope.write(position, config)


class Grouped(FirstDense):
    """DeepSeek's experts: each token selects its experts from a few expert groups; shared experts are added."""

    shared_key = "n_shared_experts"

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        router = model["layer"]["feedforward"]["router"]
        if not cls.is_grouped(config):
            for name in ("num_groups", "active_groups", "group_score"):
                router.pop(name, None)
        super().to_recipe(model, config)

    @classmethod
    def is_grouped(cls, config: ConfigJson) -> bool:
        return (config.get("n_group") or 1) > 1

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        for key in ("n_group", "topk_group"):
            config[key] = config.get(key) or 1


class LatentExperts(LatentShell, Grouped):
    """Base of models with latent attention and experts."""

    settings = (*amended(SHELL, without=BY_HEAD), *RANKS, *ROUTED, *GROUPS)
    rules = (*ENDS, *NORMS, *LATENT_RULES, *MIXTURE_RULES)


@register("family", "deepseek_v2")
class DeepseekV2(LatentExperts):
    """DeepSeek-V2: groups are scored by their best expert; weights are not normalized."""

    base = merged(
        BASE, {"layer": {"attention": {**LATENT, "bias": False}, "feedforward": {"router": {"group_score": "max"}}}}
    )
    heads = heads_of("DeepseekV2")
    fixed = (Fixed("mlp_bias", (False,)), EVERY_LAYER, Fixed("scoring_func", ("softmax",)))

    @classmethod
    def is_grouped(cls, config: ConfigJson) -> bool:
        return super().is_grouped(config) and config.get("topk_method") == "group_limited_greedy"

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["topk_method"] = "group_limited_greedy" if config["n_group"] > 1 else "greedy"


@register("family", "deepseek_v3")
class DeepseekV3(LatentExperts):
    """DeepSeek-V3 and R1: sigmoid scores with a selection bias; groups are scored by their two best experts."""

    base = merged(BASE, {"layer": {"attention": {**LATENT, "bias": False}, "feedforward": SIGMOID}})
    heads = heads_of("DeepseekV3")
    settings = (*LatentExperts.settings, NORMALIZED)
    fixed: ClassVar[tuple[Fixed, ...]] = (
        EVERY_LAYER,
        Fixed("scoring_func", ("sigmoid",)),
        Fixed("topk_method", ("noaux_tc",)),
    )
    dense_layers = 3
    ahead = either = True


@register("family", "glm4_moe_lite")
class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash: DeepSeek-V3 whose config.json lists the dense layers."""

    heads = heads_of("Glm4MoeLite")
    dense_layers, listed_dense = 1, True


@register("family", "glm4_moe")
class Glm4Moe(Grouped):
    """GLM-4.5: DeepSeek-V3's experts with grouped-query attention and partial rotary positions."""

    base = merged(BASE, {"layer.feedforward": SIGMOID})
    heads = heads_of("Glm4Moe")
    settings = (
        *amended(SHELL, Setting("attention_bias", "layer.attention.bias", False, BIASES), rms_norm_eps=1e-5),
        *(*ROUTED, *GROUPS, NORMALIZED, Switch("use_qk_norm", "layer.attention.qk_norm", False)),
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *MIXTURE_RULES)
    rope = Rope(fraction=0.5, partial=True)
    dense_layers = 1
    ahead = True


@register("family", "youtu")
class Youtu(LatentShell):
    """Youtu-LLM: latent attention with a plain feed-forward."""

    base = merged(Llama.base, {"layer.attention": {**LATENT, "bias": False}})
    heads = heads_of("Youtu")
    settings = (*amended(Llama.settings, without=(*BY_HEAD, "mlp_bias")), *RANKS)
    rules = (*ENDS, *NORMS, *LATENT_RULES, *GATED)
    ties = either = True


DIGITS = 12  # number of decimals to which the square of a square root is rounded, to undo rounding errors


@register("family", "minicpm3")
class MiniCPM3(LatentShell):
    """MiniCPM3: latent attention; factors on embeddings, sublayer outputs and logits."""

    base = merged(Llama.base, {"layer.attention": {**LATENT, "bias": False}})
    heads = heads_of("MiniCPM3")
    settings = (
        *amended(Llama.settings, Setting("scale_emb", "embedding.scale", 12), without=BY_HEAD),
        *amended(RANKS, v_head_dim=None),
    )
    rules = (*ENDS, *NORMS, *LATENT_RULES, *GATED)
    rope, ties = Rope(scores=True), True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        layers, width = model["num_layers"], model["d_model"]
        if config.get("v_head_dim") is None:
            override(model, {"layer.attention.value_head_dim": width // model["layer"]["attention"]["num_heads"]})
        depth = config.get("scale_depth", 1.4)
        override(model, {"layer.residual.branch_scale": 1.0 if depth is None else depth / math.sqrt(layers)})
        super().to_recipe(model, config)
        if model["head"] is not None:
            override(model, {"head.scale": (config.get("dim_model_base", 256) or width) / width})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        scale = float(value_of(model, "layer.residual.branch_scale"))
        config["scale_depth"] = round(scale * math.sqrt(config["num_hidden_layers"]), DIGITS)
        base = ((model["head"] or {}).get("scale") or 1.0) * config["hidden_size"]
        config["dim_model_base"] = round(base)


HEAD_NORMS = merged(BASE, {"layer": {"attention": {"qk_norm": True}, "feedforward": SIGMOID}})


@register("family", "dots1")
class Dots1(Grouped):
    """dots.llm1: per-head norms of queries and keys; the upper layers may have a window."""

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


@register("family", "solar_open")
class SolarOpen(Grouped):
    """Solar Open (Upstage 2026): GLM-4.5's experts in every layer, and full rotation."""

    base = Glm4Moe.base
    heads = heads_of("SolarOpen")
    settings = amended(
        Glm4Moe.settings, without=("use_qk_norm",), max_position_embeddings=131072, num_key_value_heads=8, head_dim=128
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *MIXTURE_RULES)
    rope = Rope(theta=1000000.0)

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        return False


@register("family", "hy_v3")
class HunyuanV3(FirstDense):
    """Hy3 (Tencent 2026): per-head norms of queries and keys; sigmoid scores with a selection bias, a shared expert."""

    base = merged(HEAD_NORMS, {"layer.feedforward.router.normalized": True})
    heads = heads_of("HYV3")
    settings = (
        *amended(
            SHELL,
            max_position_embeddings=131072,
            num_key_value_heads=8,
            head_dim=128,
            rms_norm_eps=1e-5,
            initializer_range=0.006,
        ),
        *(*expert_settings(), Setting("router_scaling_factor", "layer.feedforward.router.scale", 2.826)),
    )
    fixed = (Fixed("mlp_bias", (False,)),)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(router="router.gate"), *shared_rules("shared_mlp")),
        Rule(f"{CHECKPOINT}.mlp.expert_bias", f"{FEEDFORWARD}.router.selection_bias"),
        *read_only(*selection_rules("mlp"), *expert_rules()[:1], *shared_rules()),  # names in memory
    )
    rope = Rope(theta=11158840.0)
    dense_layers, listed_dense, shared_key = 1, True, "num_shared_experts"
    ahead = True

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if not config["num_shared_experts"]:
            raise DataError("config.json cannot express experts without a shared one")


@register("family", "exaone_moe")
class ExaoneMoe(LocalTurns, Grouped):
    """K-EXAONE: three windowed rotary layers for each full layer without positions."""

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
class Afmoe(LocalTurns, FirstDense):
    """Trinity (Arcee 2025): gated head outputs, norms before and after each sublayer."""

    base = merged(
        HEAD_NORMS,
        {
            "layer.residual.type": "sandwich",
            "layer.attention.gate": {"over": "channel"},
            "layer.feedforward.router.normalized": True,
        },
    )
    heads = heads_of("Afmoe")
    settings = (*SHELL, *expert_settings(), Setting("route_scale", "layer.feedforward.router.scale", 1.0))
    rules = (
        *(*ENDS, *ATTENTION, *GATED, *expert_rules(router="router.gate"), *shared_rules()),
        *sandwich_rules("post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        Rule(f"{CHECKPOINT}.self_attn.gate_proj.{{kind}}", f"{LAYER}.attention.gate.projection.{{kind}}"),
        Rule(f"{CHECKPOINT}.mlp.expert_bias", f"{FEEDFORWARD}.router.selection_bias"),
    )
    window, dense_layers, first_key, shared_key = 1024, 1, "num_dense_layers", "num_shared_experts"

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return (SLIDING,) * (int(config.get("global_attn_every_n_layers", 4)) - 1) + (FULL,)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("mup_enabled"):
            override(model, {"embedding.scale": "sqrt_d_model"})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["mup_enabled"] = value_of(model, "embedding.scale") == "sqrt_d_model"
