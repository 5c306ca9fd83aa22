"""Decoders with mixers: Mamba (Gu and Dao 2023), Falcon Mamba, Jamba, and LFM2 with and without experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    GATED_NAMES,
    LAYER,
    Llama,
    attention_rules,
    end_rules,
    feedforward_rules,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    NORMALIZED,
    SHELL,
    SIGMOID,
    FirstDense,
    Sparse,
    expert_rules,
    expert_settings,
)
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import FULL, ConfigJson, Fixed, Rope, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule

MIXER = f"{LAYER}.mixer"
ACTIVATION = Fixed("hidden_act", ("silu", "swish"))


def mamba_rules(block: str) -> tuple[Rule, ...]:
    """Return the rules for a Mamba mixer that the checkpoint names `block`."""
    names = {"x_proj.weight": "selection.weight", "dt_proj.weight": "step.weight", "dt_proj.bias": "step_bias"}
    names |= {"conv1d.{kind}": "convolution.{kind}", "A_log": "log_decay", "D": "skip"}
    names |= {f"{name}_layernorm.weight": f"{own}_norm.weight" for name, own in NORMS_OF.items()}
    return (
        Rule(f"{block}.in_proj.{{kind}}", (f"{MIXER}.input.{{kind}}", f"{MIXER}.gate.{{kind}}")),
        *(Rule(f"{block}.{checkpoint}", f"{MIXER}.{own}") for checkpoint, own in names.items()),
        Rule(f"{block}.out_proj.{{kind}}", f"{MIXER}.output.{{kind}}"),
    )


NORMS_OF = {"dt": "step", "b": "given", "c": "read"}


def usual_rank(width: int) -> int:
    """Return the default rank of the projection to step sizes."""
    return math.ceil(width / 16)


@register("family", "mamba")
class MambaFamily(Family):
    """Mamba: selective state spaces in every layer, no attention, no feed-forward, no positions."""

    base: ClassVar[ModelSection] = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": None,
        "layer": {
            "residual": {"type": "pre_norm"},
            "norm": {"type": "rms_norm"},
            "mixer": {"type": "mamba"},
            "attention": "none",
            "feedforward": "none",
        },
        "init": {"type": "normal"},
    }
    heads: ClassVar[Mapping[str, ModelSection]] = heads_of("Mamba")
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "d_model", also=("d_model",)),
        Setting("num_hidden_layers", "num_layers", also=("n_layer",)),
        Setting("state_size", "layer.mixer.d_state", 16),
        Setting("conv_kernel", "layer.mixer.d_conv", 4),
        Setting("expand", "layer.mixer.expand", 2),
        Setting("use_bias", "layer.mixer.bias", False),
        Setting("use_conv_bias", "layer.mixer.conv_bias", True),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.1),
    )
    fixed = (ACTIVATION,)
    derived: ClassVar[tuple[str, ...]] = ("intermediate_size",)
    rules = (
        Rule("embeddings.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{CHECKPOINT}.norm.weight", f"{LAYER}.mixer_norm.weight"),
        *mamba_rules(f"{CHECKPOINT}.mixer"),
        Rule("norm_f.weight", "decoder.final_norm.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix, unprefixed = "backbone.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "embeddings.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        rank = config.get("time_step_rank", "auto")
        if rank not in ("auto", usual_rank(model["d_model"])):
            override(model, {"layer.mixer.rank": rank})
        if model["head"] is not None:
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", True))})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["time_step_rank"] = look(model, "layer.mixer.rank") or usual_rank(config["hidden_size"])
        config["intermediate_size"] = config["expand"] * config["hidden_size"]
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", True))


@register("family", "falcon_mamba")
class FalconMamba(MambaFamily):
    """Falcon Mamba (Zuo et al. 2024): Mamba with norms of step sizes, inputs and outputs, without weights."""

    base: ClassVar = merged(MambaFamily.base, {"layer.mixer": {"norm": {"type": "rms_norm", "affine": False}}})
    heads: ClassVar = heads_of("FalconMamba")
    settings = (*MambaFamily.settings, Setting("mixer_rms_eps", "layer.mixer.norm.eps", 1e-6))


class Mixing(Llama):
    """Base of decoders in which the layers of type `mixed` have a mixer instead of attention."""

    varying: ClassVar[tuple[str, ...]] = ("layer.attention",)
    mixed: ClassVar[str]  # layer type of the layers with a mixer
    mixer: ClassVar[ModelSection]
    mixer_settings: ClassVar[tuple[Setting, ...]]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name != cls.mixed:
            return super().over_layer(config, name)
        rows = {row.keys[0]: row.read(config) for row in cls.mixer_settings}
        return {"attention": "none", "mixer": merged(cls.mixer, rows)}

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        mixers = [layer.get("mixer") for layer in layers]
        for row in cls.mixer_settings:
            for mixer in filter(None, mixers):
                config[row.config_key] = row.write(look(mixer, row.keys[0]))
        cls.write_mixed(config, [mixer is not None for mixer in mixers])

    @classmethod
    def write_mixed(cls, config: Tree, mixed: Sequence[bool]) -> None:
        """Record in `config` which layers have a mixer."""
        config["layer_types"] = [cls.mixed if each else FULL for each in mixed]


class Unplaced(Llama):
    """Base without positions."""

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return None

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        """Write nothing."""


def known_types(types: Sequence[str], *known: str) -> list[str]:
    """Return the layer types. Raise DataError unless all are known."""
    unknown = sorted(set(types) - set(known))
    if unknown:
        raise DataError(f"config.json: layer_types: {unknown[0]!r} is not supported; expected {', '.join(known)}")
    return list(types)


def short_rules(block: str = "feed_forward") -> tuple[Rule, ...]:
    """Return the rules for LFM2's layers, their plain feed-forward named `block`."""
    norms = {"operator_norm": "{mixing}_norm", "ffn_norm": "feedforward_norm"}
    gates = tuple(f"{MIXER}.{name}.{{kind}}" for name in ("input_gate", "output_gate", "value"))
    return (
        *(*end_rules("embedding_norm"), *attention_rules("out_proj", ("q_layernorm", "k_layernorm"))),
        *(Rule(f"{CHECKPOINT}.{name}.weight", f"{LAYER}.{own}.weight") for name, own in norms.items()),
        Rule(f"{CHECKPOINT}.conv.in_proj.{{kind}}", gates),
        Rule(f"{CHECKPOINT}.conv.conv.{{kind}}", f"{MIXER}.convolution.{{kind}}"),
        Rule(f"{CHECKPOINT}.conv.out_proj.{{kind}}", f"{MIXER}.output.{{kind}}"),
        *feedforward_rules(block, gate="w1", up="w3", down="w2"),
    )


class Short(Mixing):
    """Base of LFM2: gated short convolutions in most layers, attention with norms of queries and keys."""

    settings = amended(
        Llama.settings,
        Setting("norm_eps", "layer.norm.eps", 1e-5),
        without=("head_dim", "attention_bias", "attention_dropout", "mlp_bias", "hidden_act", "rms_norm_eps"),
        max_position_embeddings=128000,
        num_key_value_heads=8,
    )
    rules = short_rules()
    rope, ties = Rope(theta=1000000.0), True
    mixed: ClassVar[str] = "conv"
    attending: ClassVar[tuple[str, ...]] = (FULL,)  # types of the layers with attention
    mixer: ClassVar[ModelSection] = {"type": "short_convolution"}
    mixer_settings: ClassVar[tuple[Setting, ...]] = (
        Setting("conv_L_cache", "size", 3),
        Setting("conv_bias", "bias", False),
    )

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        return known_types(config.get("layer_types") or cls.usual_types(config, count), *cls.attending, cls.mixed)

    @classmethod
    def usual_types(cls, config: ConfigJson, count: int) -> list[str]:
        """Return the layer types of a config that does not list them."""
        attending = config.get("full_attn_idxs")
        attending = range(count) if attending is None else attending
        return [FULL if layer in attending else cls.mixed for layer in range(count)]


@register("family", "lfm2")
class Lfm2(Short):
    """LFM2 (Liquid AI 2025): gated short convolutions in most layers, attention with norms of queries and keys."""

    base = merged(Llama.base, {"layer.attention": {"qk_norm": True}})
    heads = heads_of("Lfm2")
    settings = amended(Short.settings, Setting("intermediate_size", "layer.feedforward.d_ff", also=("block_ff_dim",)))

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        feedforward = model["layer"]["feedforward"]
        if config.get("block_auto_adjust_ff_dim", True):
            width, multiple = int(2 * feedforward["d_ff"] / 3), int(config.get("block_multiple_of", 256))
            factor = config.get("block_ffn_dim_multiplier", 1.0)
            feedforward["d_ff"] = width if factor is None else -(int(factor * width) // -multiple) * multiple
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["block_auto_adjust_ff_dim"] = False


@register("family", "lfm2_moe")
class Lfm2Moe(Short, FirstDense):
    """LFM2-MoE (Liquid AI 2025): LFM2 with sigmoid experts after the first layers."""

    base = merged(BASE, {"layer": {"attention": {"qk_norm": True}, "feedforward": SIGMOID}})
    heads = heads_of("Lfm2Moe")
    settings = (
        *amended(Short.settings, without=("intermediate_size",)),
        *amended(expert_settings(), without=("hidden_act",)),
        *amended((NORMALIZED,), norm_topk_prob=True),
        Setting("routed_scaling_factor", "layer.feedforward.router.scale", 1.0),
        Setting("use_expert_bias", "layer.feedforward.router.selection_bias", True),
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")
    rules = (
        *(*short_rules(), *expert_rules("feed_forward", "w1", "w3", "w2")),
        Rule(f"{CHECKPOINT}.feed_forward.expert_bias", f"{LAYER}.feedforward.router.selection_bias"),
    )
    dense_layers, first_key = 2, "num_dense_layers"


@register("family", "jamba")
class Jamba(Unplaced, Mixing, Sparse):
    """Jamba (Lieber et al. 2024): one attention layer in eight, the others Mamba; experts in every second layer."""

    base = merged(BASE, {"position": None})
    heads = heads_of("Jamba")
    settings = (
        *amended(SHELL, without=("head_dim", "attention_bias"), max_position_embeddings=262144, num_key_value_heads=8),
        *amended(expert_settings(d_ff="intermediate_size"), without=("hidden_act",)),
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")
    fixed = (ACTIVATION,)
    rules = (
        *(*end_rules("final_layernorm"), *ATTENTION, *mamba_rules(f"{CHECKPOINT}.mamba")),
        *norm_rules(**{"{mixing}_norm": "input_layernorm", "feedforward_norm": "pre_ff_layernorm"}),
        *(*expert_rules("feed_forward", router="router"), *feedforward_rules("feed_forward", **GATED_NAMES)),
    )
    mixed: ClassVar[str] = "mamba"
    mixer: ClassVar[ModelSection] = {"type": "mamba", "norm": True}
    mixer_settings: ClassVar = (
        Setting("mamba_d_state", "d_state", 16),
        Setting("mamba_d_conv", "d_conv", 4),
        Setting("mamba_expand", "expand", 2),
        Setting("mamba_conv_bias", "conv_bias", True),
        Setting("mamba_proj_bias", "bias", False),
    )

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        period, offset = config.get("attn_layer_period", 8), config.get("attn_layer_offset", 4)
        return [FULL if layer % period == offset else cls.mixed for layer in range(count)]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind, rank = super().over_layer(config, name), config.get("mamba_dt_rank", "auto")
        if kind and rank not in ("auto", usual_rank(config["hidden_size"])):
            kind["mixer"]["rank"] = rank
        return kind

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        ranks = (layer["mixer"]["rank"] for layer in layers if layer.get("mixer"))
        config["mamba_dt_rank"] = next(ranks, None) or usual_rank(config["hidden_size"])

    @classmethod
    def write_mixed(cls, config: Tree, mixed: Sequence[bool]) -> None:
        config["attn_layer_period"], config["attn_layer_offset"] = interval([not each for each in mixed])

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        period, offset = config.get("expert_layer_period", 2), config.get("expert_layer_offset", 1)
        return config.get("num_experts") == 1 or layer % period != offset

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["expert_layer_period"], config["expert_layer_offset"] = interval([not each for each in dense])


def interval(chosen: Sequence[bool]) -> tuple[int, int]:
    """Return the period and the offset of the chosen layers; the offset is beyond the last layer if none is chosen.

    If they are irregular, the config reads back differently, so the family does not match.
    """
    places = [layer for layer, each in enumerate(chosen) if each] or [len(chosen)]
    return places[1] - places[0] if len(places) > 1 else len(chosen) + 1, places[0]
