"""DeepSeek-V2 and V3 (2024), and decoders with their latent attention, their experts, or both."""

from __future__ import annotations

from typing import Any, ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    Llama,
    heads_of,
)
from tfkit.interop.huggingface.families.sparse import (
    BASE,
    SHELL,
    SIGMOID,
    FirstDense,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged, value_of
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, Switch, amended
from tfkit.interop.huggingface.tensors import Rule

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
    derived = ("num_key_value_heads", "head_dim", "qk_head_dim")
    either: ClassVar[bool] = False  # True if rope_interleave selects the rotary layout

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        attention = model["layer"]["attention"]
        attention["bias"] = latent_bias(config)
        if attention.get("value_head_dim") == attention["head_dim"]:
            del attention["value_head_dim"]
        super().to_recipe(model, config)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        position = super().position(config, name)
        interleaved = config.get("rope_interleave") if cls.either else None
        return position if interleaved is None else {**position, "layout": "interleaved" if interleaved else "halves"}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        write_latent(config, model)

    @classmethod
    def write_positions(cls, config: Tree, layers: Any) -> None:
        position = layers[0]["position"]
        if cls.either:
            config["rope_interleave"] = position["layout"] == "interleaved"
            position = {**position, "layout": cls.rope.layout}
        config["rope_parameters"] = cls.rope.write(position, config)


def latent_bias(config: ConfigJson) -> object:
    """Return the names of the projections that have a bias, or False."""
    down = ["query_down"] if config.get("q_lora_rank") is not None else []
    return [*down, "key_value_down", "output"] if config.get("attention_bias") else False


def write_latent(config: Tree, model: ModelSection) -> None:
    """Write the config keys of latent attention that `settings` cannot express."""
    config["attention_bias"] = bool(value_of(model, "layer.attention.bias"))
    config["num_key_value_heads"] = config["num_attention_heads"]
    config["q_lora_rank"] = value_of(model, "layer.attention.query_rank")
    config["v_head_dim"] = config["v_head_dim"] or config["qk_nope_head_dim"]


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
        """True if experts are divided into several groups."""
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

    model_types = ("deepseek_v2",)
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

    model_types = ("deepseek_v3",)
    base = merged(BASE, {"layer": {"attention": {**LATENT, "bias": False}, "feedforward": SIGMOID}})
    heads = heads_of("DeepseekV3")
    settings = (*LatentExperts.settings, NORMALIZED)
    fixed = (EVERY_LAYER, Fixed("scoring_func", ("sigmoid",)), Fixed("topk_method", ("noaux_tc",)))
    dense_layers = 3
    ahead = either = True


@register("family", "glm4_moe_lite")
class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash: DeepSeek-V3 whose config.json lists the dense layers."""

    model_types = ("glm4_moe_lite",)
    heads = heads_of("Glm4MoeLite")
    dense_layers, listed_dense = 1, True


@register("family", "glm4_moe")
class Glm4Moe(Grouped):
    """GLM-4.5: DeepSeek-V3's experts with grouped-query attention and partial rotary positions."""

    model_types = ("glm4_moe",)
    base = merged(BASE, {"layer.feedforward": SIGMOID})
    heads = heads_of("Glm4Moe")
    settings = (
        *amended(
            SHELL,
            Setting("attention_bias", "layer.attention.bias", False, {True: ["query", "key", "value"], False: False}),
            rms_norm_eps=1e-5,
        ),
        *(*ROUTED, *GROUPS, NORMALIZED, Switch("use_qk_norm", "layer.attention.qk_norm", False)),
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *MIXTURE_RULES)
    rope = Rope(fraction=0.5, partial=True)
    dense_layers = 1
    ahead = True


@register("family", "youtu")
class Youtu(LatentShell):
    """Youtu-LLM: latent attention with a plain feed-forward."""

    model_types = ("youtu",)
    base = merged(Llama.base, {"layer.attention": {**LATENT, "bias": False}})
    heads = heads_of("Youtu")
    settings = (*amended(Llama.settings, without=(*BY_HEAD, "mlp_bias")), *RANKS)
    rules = (*ENDS, *NORMS, *LATENT_RULES, *GATED)
    ties = either = True
