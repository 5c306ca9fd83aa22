"""Decoders in which most layers have a delta rule: Qwen3-Next, Qwen 3.5 with and without experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.deepseek import (
    BY_HEAD,
    EVERY_LAYER,
    GROUPS,
    LATENT_RULES,
    RANKS,
    DeepseekV3,
    LatentExperts,
)
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    Llama,
    attention_rules,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.mistral import Olmo2
from tfkit.interop.huggingface.families.mixers import MIXER, Mixing, Unplaced, known_types
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    NORMALIZED,
    SHARED_GATE,
    SHELL,
    QwenMoe,
    Sparse,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import FULL, NEEDED, ConfigJson, Fixed, Rope, Setting, amended, first, look
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

HEADS = (
    Setting("linear_num_key_heads", "num_heads", 16),
    Setting("linear_num_value_heads", "num_value_heads", 32),
    Setting("linear_key_head_dim", "head_dim", 128),
    Setting("linear_value_head_dim", "value_dim", 128),
    Setting("linear_conv_kernel_dim", "d_conv", 4),
)
CONVOLUTIONS = tuple(f"{MIXER}.{name}_convolution.weight" for name in ("query", "key", "value"))
INPUTS = tuple(f"{MIXER}.{name}.weight" for name in ("query", "key", "value"))
EACH = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "strength": "b_proj",
    "norm": "o_norm",
    "output": "o_proj",
}

VECTORS = {"log_decay": "A_log", "step_bias": "dt_bias"}  # parameters of the mixer itself


def delta_rules(block: str, **names: str) -> tuple[Rule, ...]:
    """Return the rules for a delta rule that the checkpoint names `block`. `names`: tfkit name = checkpoint name."""
    ends = {own: "" if own in VECTORS else ".weight" for own in names}
    return tuple(
        Rule(f"{CHECKPOINT}.{block}.{checkpoint}{ends[own]}", f"{MIXER}.{own}{ends[own]}")
        for own, checkpoint in names.items()
    )


def each_convolution(block: str) -> tuple[str, ...]:
    """Return the names of the convolutions, if the checkpoint has one for each of queries, keys and values."""
    return tuple(f"{CHECKPOINT}.{block}.{name}_conv1d.weight" for name in "qkv")


def usual_sizes(size: Callable[[str], int], config: ConfigJson) -> dict[str, object]:
    """Return the defaults of a mixer's sizes; `size` returns its other sizes by name."""
    heads = size("num_heads") or 1
    return {"head_dim": config["hidden_size"] // heads, "value_dim": size("head_dim"), "num_value_heads": heads}


class DeltaHybrid(Mixing):
    """Base of decoders with a delta rule in most layers, and attention in every fourth."""

    mixed: ClassVar[str] = "linear_attention"

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind = super().over_layer(config, name)
        mixer = kind.get("mixer", {})
        usual = usual_sizes(mixer.get, config)
        return {**kind, "mixer": {key: mixer[key] for key in mixer if usual.get(key) != mixer[key]}} if kind else kind

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        keys = {row.keys[0]: row.config_key for row in cls.mixer_settings}
        for own in ("head_dim", "value_dim", "num_value_heads"):  # value_dim depends on head_dim
            if own in keys and config.get(keys[own], NEEDED) is None:
                config[keys[own]] = usual_sizes(lambda key: config[keys[key]], config)[own]

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        every = int(config.get("full_attention_interval", 4))
        usual = [FULL if (layer + 1) % every == 0 else cls.mixed for layer in range(count)]
        return known_types(config.get("layer_types") or usual, FULL, cls.mixed)


BY_GROUP = "(group inner) width -> inner group width"  # the rows of each key head are adjacent
OFFSET: Tree = {"norm": {"weight_offset": 1.0}, "attention": {"qk_norm": True, "gate": {"over": "channel"}}}
# each query head is followed by its gate
WITH_GATE = Rule(
    f"{CHECKPOINT}.self_attn.q_proj.{{kind}}",
    (f"{LAYER}.attention.query.{{kind}}", f"{LAYER}.attention.gate.projection.{{kind}}"),
    "(head slot dim) width -> slot head dim width",
    "(head dim) width -> 1 head dim width",
    axes={"slot": 2},
)


def qwen_rules(**names: str) -> tuple[Rule, ...]:
    """Return the rules that all Qwen decoders with a delta rule share, and those of further weights of the mixers."""
    return (
        *(*ENDS, *attention_rules()[1:], WITH_GATE),
        *norm_rules(**{"{mixing}_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}),
        Rule(f"{CHECKPOINT}.linear_attn.conv1d.weight", CONVOLUTIONS),
        *delta_rules("linear_attn", **VECTORS, norm="norm", output="out_proj", **names),
    )


APART = (
    Rule(f"{CHECKPOINT}.linear_attn.in_proj_qkv.weight", INPUTS),
    *qwen_rules(gate="in_proj_z", strength="in_proj_b", step="in_proj_a"),
)
EXPERT_RULES = (*expert_rules(), *shared_rules("shared_expert"), SHARED_GATE)


class QwenDelta(DeltaHybrid):
    """Base of Qwen3-Next and Qwen 3.5: gated attention, a quarter of each head rotated, norm weights offset by 1."""

    settings = amended(
        Llama.settings,
        Setting("attention_bias", ("layer.attention.bias", "layer.attention.gate.bias"), False),
        without=("mlp_bias",),
        max_position_embeddings=32768,
        num_key_value_heads=2,
        head_dim=256,
    )
    rope = Rope(fraction=0.25, partial=True)
    derived: ClassVar[tuple[str, ...]] = (
        "rope_parameters.mrope_section",
        "rope_parameters.mrope_interleaved",
    )  # equal positions in all sections
    mixer: ClassVar[ModelSection] = {"type": "gated_delta_net", "norm": {"type": "rms_norm", "weight_offset": 0.0}}
    mixer_settings: ClassVar[tuple[Setting, ...]] = (*HEADS, Setting("rms_norm_eps", "norm.eps", 1e-6))
    ahead = recent = True


@register("family", "qwen3_5_text")
class Qwen35(QwenDelta):
    """Qwen 3.5 (Qwen Team 2026), text model: a gated delta rule in three of four layers, then gated attention."""

    base = merged(Llama.base, {"layer": OFFSET})
    heads = {"Qwen3_5ForCausalLM": {"head": {"type": "language_model"}}, "Qwen3_5TextModel": {"head": "none"}}
    settings = amended(QwenDelta.settings, num_key_value_heads=4)
    rules = (*APART, *GATED)


class QwenDeltaMoe(QwenDelta, Sparse):
    """Qwen 3.5's layers with experts, and a shared expert with a gate."""

    base = merged(BASE, {"layer": {**OFFSET, "feedforward": {"shared_expert": {"type": "glu"}, "shared_gate": True}}})
    settings = (
        *amended(QwenDelta.settings, without=("intermediate_size", "hidden_act")),
        *expert_settings(),
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")


@register("family", "qwen3_5_moe_text")
class Qwen35Moe(QwenDeltaMoe):
    """Qwen 3.5 with experts (Qwen Team 2026), text model."""

    base = merged(QwenDeltaMoe.base, {"layer.feedforward.router.normalized": True})
    heads = {"Qwen3_5MoeForCausalLM": {"head": {"type": "language_model"}}, "Qwen3_5MoeTextModel": {"head": "none"}}
    rules = (*APART, *EXPERT_RULES)


@register("family", "qwen3_next")
class Qwen3Next(QwenDeltaMoe, QwenMoe):
    """Qwen3-Next (Qwen Team 2025): a gated delta rule in three of four layers, many small experts, a shared one."""

    heads = heads_of("Qwen3Next")
    settings = (*QwenDeltaMoe.settings, *amended((NORMALIZED,), norm_topk_prob=True))
    fixed, derived = (), ()
    rules = (
        *(*qwen_rules(), *GATED, *EXPERT_RULES),
        Rule(f"{CHECKPOINT}.linear_attn.in_proj_qkvz.weight", (*INPUTS, f"{MIXER}.gate.weight"), BY_GROUP, BY_GROUP),
        Rule(
            f"{CHECKPOINT}.linear_attn.in_proj_ba.weight",
            (f"{MIXER}.strength.weight", f"{MIXER}.step.weight"),
            BY_GROUP,
            BY_GROUP,
        ),
    )


def norm_pairs(mixing: str, *names: tuple[str, str]) -> tuple[Rule, ...]:
    """Return the rules for both norms of the layers that have `mixing`, which files spell in one of several ways."""
    own = (f"{LAYER}.{mixing}_norm.weight", f"{LAYER}.feedforward_norm.weight")
    return spellings(*(Rule(tuple(f"{CHECKPOINT}.{name}.weight" for name in pair), own) for pair in names))


NORMS_BY_LAYER = (
    *norm_pairs(
        "attention",
        ("feedforward_layer_norm", "post_feedforward_layernorm"),
        ("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    *norm_pairs(
        "mixer", ("attention_layer_norm", "feedforward_layer_norm"), ("input_layernorm", "post_attention_layernorm")
    ),
)


@register("family", "olmo_hybrid")
class OlmoHybrid(DeltaHybrid):
    """OLMo Hybrid (Ai2 2026): pre-norm layers with a gated delta rule, OLMo 2's attention in every fourth layer."""

    base = Olmo2.base
    heads = heads_of("OlmoHybrid")
    settings = amended(
        Llama.settings, without=("head_dim", "mlp_bias"), max_position_embeddings=65536, rms_norm_eps=1e-6
    )
    varying: ClassVar = ("layer.attention", "layer.residual")
    derived = tuple(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor"))
    rules = (
        *(*ENDS, *ATTENTION, *GATED, Rule(each_convolution("linear_attn"), CONVOLUTIONS)),
        *delta_rules("linear_attn", **VECTORS, **EACH, gate="g_proj", step="a_proj"),
    )
    mixer: ClassVar[ModelSection] = {"type": "gated_delta_net", "norm": {"type": "rms_norm", "eps": 1e-5}}
    mixer_settings: ClassVar = (
        *(replace(row, default=NEEDED) for row in HEADS[:4]),
        HEADS[4],
        Setting("linear_allow_neg_eigval", "reflects", True),
    )

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind = super().over_layer(config, name)
        if kind:
            kind["residual"] = {"type": "pre_norm"}
        return kind

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return None if look(config, "rope_parameters.rope_theta", NEEDED) is None else super().position(config, name)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        if any(layer["position"] for layer in layers):
            super().write_positions(config, layers)
        else:
            config["rope_parameters"] = {"rope_type": "default", "rope_theta": None}

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Return the rules: the names of a layer's second norm depend on what the first one precedes or follows."""
        return (*super().rules_of(blueprint), *NORMS_BY_LAYER)


KIMI = "block_sparse_moe"  # the feed-forward's name in files; in memory it is mlp, too
KIMI_NAMES = {"step_bias": "dt_bias", "key": "k_proj", "value": "v_proj", "strength": "b_proj", "norm": "o_norm"}
RANKED = {"step.0": "f_a_proj", "step.1": "f_b_proj", "gate.0": "g_a_proj", "gate.1": "g_b_proj"}
MIXTURE = (*GATED, *shared_rules(), *selection_rules("mlp.gate"))
MOVED = tuple(replace(rule, checkpoint=str(rule.checkpoint).replace(".mlp.", f".{KIMI}.")) for rule in MIXTURE)


@register("family", "kimi_linear")
class KimiLinear(Unplaced, DeltaHybrid, LatentExperts):
    """Kimi Linear (Moonshot AI 2025): a decay per channel in three of four layers, latent attention, no positions."""

    base = merged(DeepseekV3.base, {"position": None})
    heads = heads_of("KimiLinear")
    settings = (
        *amended(
            (*SHELL, *RANKS),
            Setting("model_max_length", "max_length", 1048576, also=("max_position_embeddings",)),
            without=(*BY_HEAD, "max_position_embeddings"),
            rms_norm_eps=1e-5,
        ),
        *expert_settings(active="num_experts_per_token"),
        Setting("num_expert_group", "layer.feedforward.router.num_groups", None, also=("n_group",)),
        GROUPS[1],
        Setting("routed_scaling_factor", "layer.feedforward.router.scale", 2.446),
        Setting("moe_renormalize", "layer.feedforward.router.normalized", True, also=("norm_topk_prob",)),
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")
    fixed = (EVERY_LAYER, Fixed("moe_router_activation_func", ("sigmoid",)), Fixed("mla_use_nope", (True,)))
    rules = (
        *(*ENDS, *(replace(rule, own=str(rule.own).replace(".attention.", ".{mixing}.")) for rule in LATENT_RULES)),
        *norm_rules(**{"{mixing}_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}),
        *(*expert_rules(KIMI, "w1", "w3", "w2"), *MOVED, *read_only(*MIXTURE)),
        *(Rule(each_convolution("self_attn"), CONVOLUTIONS), *delta_rules("self_attn", **KIMI_NAMES, **RANKED)),
        Rule(f"{CHECKPOINT}.self_attn.A_log", f"{MIXER}.log_decay", "1 1 head 1 -> head"),
    )
    mixer: ClassVar[ModelSection] = {"type": "kimi_delta", "norm": {"type": "rms_norm"}}
    mixer_settings: ClassVar = (
        Setting("linear_num_heads", "num_heads", 32, also=("linear_attn_config.num_heads",)),
        Setting("linear_head_dim", "head_dim", 128, also=("linear_attn_config.head_dim",)),
        Setting("linear_conv_kernel_dim", "d_conv", 4, also=("linear_attn_config.short_conv_kernel_size",)),
        Setting("rms_norm_eps", "norm.eps", 1e-5),
    )
    dense_layers, listed_dense, shared_key = 1, True, "num_shared_experts"
    derived = (*LatentExperts.derived, "linear_attn_config.kda_layers", "use_grouped_topk", "rope_theta")

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        listed = look(config, "linear_attn_config.full_attn_layers")  # counted from 1
        attending = range(5, count + 1, 4) if listed is None else listed
        usual = [FULL if layer + 1 in attending else cls.mixed for layer in range(count)]
        return known_types(config.get("layer_types") or usual, FULL, cls.mixed)

    @classmethod
    def is_grouped(cls, config: ConfigJson) -> bool:
        return (first(config.get("num_expert_group"), config.get("n_group")) or 1) > 1

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["num_expert_group"] = config["num_expert_group"] or config["n_group"]
        del config["n_group"], config["first_k_dense_replace"]
