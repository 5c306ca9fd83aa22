"""Decoders with Mamba-2 mixers: Mamba-2 (Dao and Gu 2024), Bamba, Granite 4, Nemotron-H."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    GATED_NAMES,
    LAYER,
    NORMS,
    Llama,
    end_rules,
    feedforward_rules,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.llama4 import SHARED_RULES, GraniteMoeShared
from tfkit.interop.huggingface.families.mixers import ACTIVATION, MIXER, MambaFamily, Mixing, Unplaced, known_types
from tfkit.interop.huggingface.families.mixtral import FEEDFORWARD, SIGMOID, STACKS
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import ACTIVATIONS, FULL, ConfigJson, Fixed, Rope, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule, spellings


def mamba2_rules(block: str) -> tuple[Rule, ...]:
    """Return the rules for a Mamba-2 mixer that the checkpoint names `block`."""
    names = {"conv1d.{kind}": "convolution.{kind}", "dt_bias": "step_bias", "A_log": "log_decay", "D": "skip"}
    names |= {"norm.weight": "norm.weight", "out_proj.{kind}": "output.{kind}"}
    return (
        Rule(f"{block}.in_proj.{{kind}}", tuple(f"{MIXER}.{own}.{{kind}}" for own in ("gate", "input", "step"))),
        *(Rule(f"{block}.{checkpoint}", f"{MIXER}.{own}") for checkpoint, own in names.items()),
    )


# keys of kernels and of initial values
UNUSED = ("chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "use_mamba_kernels")
STEPS = ("time_step_rank", "time_step_min", "time_step_max", "time_step_floor")
UNBOUNDED = 1e18  # exceeds any step size


def complete(mixer: Tree, config: ConfigJson, eps: float) -> None:
    """Add the norm of a Mamba-2 mixer, over each group, and the limits of its step sizes."""
    width, groups = mixer["num_heads"] * mixer["head_dim"], mixer["groups"]
    mixer["norm"] = {"type": "rms_norm", "eps": eps, **({"group_size": width // groups} if groups > 1 else {})}
    least, most = config.get("time_step_limit") or (0.0, math.inf)
    most = math.inf if isinstance(most, Mapping) else most  # transformers 5 writes infinity as an object
    if (least, most) != (0, math.inf):
        mixer["step_limits"] = [float(least), min(float(most), UNBOUNDED)]


def write_mixer(config: Tree, mixer: ModelSection, heads: str, expand: str) -> None:
    """Write the limits of step sizes, and the heads and the expansion under their keys; no expansion without a key.

    Raises DataError if the expansion is not a whole number.
    """
    config[heads] = mixer["num_heads"] or (mixer["expand"] or 2) * config["hidden_size"] // mixer["head_dim"]
    if expand:
        config[expand], rest = divmod(config[heads] * mixer["head_dim"], config["hidden_size"])
        if rest:
            raise DataError(f"config.json requires a mixer whose width is a multiple of {config['hidden_size']}")
    if mixer["step_limits"]:
        config["time_step_limit"] = list(mixer["step_limits"])


OLDER = {"linear_attention": "mamba", "attention": FULL}  # other names for types of layers


@register("family", "mamba2")
class Mamba2Family(MambaFamily):
    """Mamba-2 (Dao and Gu 2024): state spaces with one decay per head in every layer, no attention, no positions."""

    base: ClassVar[ModelSection] = merged(MambaFamily.base, {"layer.mixer.type": "mamba2"})
    heads: ClassVar[Mapping[str, ModelSection]] = heads_of("Mamba2")
    settings = amended(
        MambaFamily.settings,
        Setting("num_heads", "layer.mixer.num_heads"),
        Setting("head_dim", "layer.mixer.head_dim", 64),
        Setting("n_groups", "layer.mixer.groups", 8),
        without=("expand",),
        state_size=128,
    )
    derived: ClassVar[tuple[str, ...]] = (*UNUSED, *STEPS, "expand")
    rules = tuple(rule for rule in MambaFamily.rules if ".mixer." not in str(rule)) + mamba2_rules(
        f"{CHECKPOINT}.mixer"
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        complete(model["layer"]["mixer"], config, config.get("layer_norm_epsilon", 1e-5))
        if model["head"] is not None:
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", False))})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        write_mixer(config, model["layer"]["mixer"], "num_heads", "expand")
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", False))


class Scanning(Mixing):
    """Base of hybrids whose other layers are Mamba-2."""

    mixed: ClassVar[str] = "mamba"
    listing: ClassVar[str] = "layer_types"  # key of the layers with attention
    expand: ClassVar[str] = "mamba_expand"  # key of the expansion, if it must agree with the heads
    mixer: ClassVar[ModelSection] = {"type": "mamba2"}
    mixer_settings: ClassVar = (
        Setting("mamba_n_heads", "num_heads", 128),
        Setting("mamba_d_head", "head_dim", "auto"),
        Setting("mamba_n_groups", "groups", 1),
        Setting("mamba_d_state", "d_state", 256),
        Setting("mamba_d_conv", "d_conv", 4),
        Setting("mamba_conv_bias", "conv_bias", True),
        Setting("mamba_proj_bias", "bias", False),
    )
    derived: ClassVar[tuple[str, ...]] = (
        "mamba_expand",
        "mamba_chunk_size",
        "num_logits_to_keep",
        "z_loss_coefficient",
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if FULL not in cls.types(config, model["num_layers"]):
            raise DataError(f"config.json: {cls.listing}: no layer has attention, which '{cls.part_name}' requires")
        super().to_recipe(model, config)

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind = super().over_layer(config, name)
        if kind:
            if kind["mixer"]["head_dim"] == "auto":
                width = config.get(cls.expand, 2) * config["hidden_size"]
                kind["mixer"]["head_dim"] = width // kind["mixer"]["num_heads"]
            eps = next(row for row in cls.settings if row.recipe_key == "layer.norm.eps")
            complete(kind["mixer"], config, eps.read(config))
        return kind

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        for mixer in (layer["mixer"] for layer in layers if layer.get("mixer")):
            write_mixer(config, mixer, cls.mixer_settings[0].config_key, cls.expand)


@register("family", "bamba")
class Bamba(Scanning):
    """Bamba (IBM 2024): Mamba-2 in most layers, attention with half-rotated heads in a few, feed-forwards in all."""

    heads = heads_of("Bamba")
    settings = amended(
        Llama.settings, without=("head_dim",), max_position_embeddings=262144, num_key_value_heads=8, rms_norm_eps=1e-5
    )
    rules = (
        *(*end_rules("final_layernorm"), *ATTENTION, *mamba2_rules(f"{CHECKPOINT}.mamba")),
        *norm_rules(**{"{mixing}_norm": "input_layernorm", "feedforward_norm": "pre_ff_layernorm"}),
        *feedforward_rules("feed_forward", **GATED_NAMES),
    )
    rope, listing = Rope(fraction=0.5, partial=True), "attn_layer_indices"
    fixed = (*Llama.fixed, ACTIVATION)

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        attending = config.get("attn_layer_indices") or ()
        return [FULL if layer in attending else cls.mixed for layer in range(count)]

    @classmethod
    def write_mixed(cls, config: Tree, mixed: Sequence[bool]) -> None:
        config["attn_layer_indices"] = [layer for layer, each in enumerate(mixed) if not each]


@register("family", "granitemoehybrid")
class GraniteMoeHybrid(Scanning, GraniteMoeShared):
    """Granite 4 (IBM 2025): Granite's factors, Mamba-2 in most layers, a shared expert with or without others."""

    base = merged(GraniteMoeShared.base, {"position": None})
    heads = heads_of("GraniteMoeHybrid")
    rules = (
        *(rule for rule in GraniteMoeShared.rules if rule not in NORMS),
        *mamba2_rules(f"{CHECKPOINT}.mamba"),
        *norm_rules(**{"{mixing}_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}),
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")
    fixed = (*GraniteMoeShared.fixed, ACTIVATION)
    dense_key = "shared_intermediate_size"

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        rules = super().rules_of(blueprint)
        if any(part.part.part_name == "experts" for part in blueprint.last.parts()):
            return rules
        own = (tuple(name.replace(".shared_expert", "") for name in rule.own_names) for rule in SHARED_RULES)
        alone = (replace(rule, own=names) for rule, names in zip(SHARED_RULES, own, strict=True))
        return (*alone, *(rule for rule in rules if rule not in SHARED_RULES))

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        types = look(config, "layer_types", look(config, "layers_block_type")) or [cls.mixed] * count
        return known_types([OLDER.get(name, name) for name in types], cls.mixed, FULL)

    @classmethod
    def write_mixed(cls, config: Tree, mixed: Sequence[bool]) -> None:
        config["layer_types"] = ["mamba" if each else "attention" for each in mixed]

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return super().position(config, name) if config.get("position_embedding_type") == "rope" else None

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        placed = any(layer["position"] for layer in layers)
        config["position_embedding_type"] = "rope" if placed else "nope"
        if placed:
            super().write_positions(config, layers)

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        return config.get("num_local_experts") == 0

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if "num_local_experts" not in config:
            width = value_of(model, "layer.feedforward.d_ff")
            config |= {
                "num_local_experts": 0,
                "num_experts_per_tok": 0,
                "intermediate_size": width,
                cls.dense_key: width,
            }


MLP, MOE = "mlp", "moe"
LETTERS = {"M": Scanning.mixed, "*": FULL, "-": MLP, "E": MOE, **OLDER}  # types of layers in patterns


def at_mixer(**names: str) -> tuple[Rule, ...]:
    """Return the rules for sublayers that Nemotron-H stores as `mixer`. `names`: checkpoint name = tfkit name."""
    rows = ((f"{CHECKPOINT}.mixer.{name}", own) for name, own in names.items())
    return tuple(Rule(f"{checkpoint}_proj.{{kind}}", f"{LAYER}.{own}.{{kind}}") for checkpoint, own in rows)


@register("family", "nemotron_h")
class NemotronH(Unplaced, Scanning):
    """Nemotron-H (NVIDIA 2025): layers of a single sublayer: Mamba-2, attention, squared ReLU or experts of it."""

    base = merged(Llama.base, {"position": None, "layer.feedforward": {"type": "mlp", "bias": False}})
    heads = heads_of("NemotronH")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("mlp_hidden_act", "layer.feedforward.activation", "relu2", ACTIVATIONS),
        without=("num_hidden_layers", "attention_bias", "hidden_act", "rms_norm_eps"),
        max_position_embeddings=4096,
        num_key_value_heads=8,
        head_dim=128,
    )
    varying: ClassVar = ("layer.attention", "layer.feedforward")
    fixed = (
        *(Fixed("mamba_hidden_act", ("silu", "swish")), Fixed("n_group", (1,)), Fixed("n_shared_experts", (1,))),
        Fixed("moe_latent_size", (None,)),
    )
    expand = ""
    mixer_settings = (
        Setting("mamba_num_heads", "num_heads", 128),
        Setting("mamba_head_dim", "head_dim", 64),
        Setting("n_groups", "groups", 8, also=("mamba_n_groups",)),
        Setting("ssm_state_size", "d_state", 128),
        Setting("conv_kernel", "d_conv", 4, also=("mamba_d_conv",)),
        Setting("use_conv_bias", "conv_bias", True, also=("mamba_conv_bias",)),
        Setting("use_bias", "bias", False),
    )
    experts: ClassVar[ModelSection] = {
        "type": "experts",
        "expert": {"type": "mlp", "bias": False},
        "shared_expert": {"type": "mlp"},
        **SIGMOID,
    }
    expert_settings: ClassVar[tuple[Setting, ...]] = (
        Setting("n_routed_experts", "num_experts", 8),
        Setting("num_experts_per_tok", "num_active", 2),
        Setting("moe_intermediate_size", "expert.d_ff", 7688),
        Setting("moe_shared_expert_intermediate_size", "shared_expert.d_ff", 7688),
        Setting("mlp_hidden_act", ("expert.activation", "shared_expert.activation"), "relu2", ACTIVATIONS),
        Setting("mlp_bias", "shared_expert.bias", False),
        Setting("norm_topk_prob", "router.normalized", True),
        Setting("routed_scaling_factor", "router.scale", 1.0),
    )
    derived = (
        *UNUSED,
        *STEPS,
        "num_hidden_layers",
        "expand",
        "num_logits_to_keep",
        "mamba_ssm_cache_dtype",
        "topk_group",
    )
    rules = (
        Rule("embeddings.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{CHECKPOINT}.norm.weight", f"{LAYER}.{{sublayer}}_norm.weight"),
        *mamba2_rules(f"{CHECKPOINT}.mixer"),
        *at_mixer(q="attention.query", k="attention.key", v="attention.value", o="attention.output"),
        *at_mixer(up="feedforward.up", down="feedforward.down"),
        Rule(f"{CHECKPOINT}.mixer.gate.weight", f"{FEEDFORWARD}.router.projection.weight"),
        Rule(f"{CHECKPOINT}.mixer.gate.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias"),
        *at_mixer(**{f"shared_experts.{name}": f"feedforward.shared_expert.{name}" for name in ("up", "down")}),
        *(
            rule
            for name in ("up", "down")
            for rule in spellings(
                Rule(f"{CHECKPOINT}.mixer.experts.{{expert}}.{name}_proj.weight", f"{STACKS}.{name}.weight"),
                Rule(f"{CHECKPOINT}.mixer.experts.{name}_proj", f"{STACKS}.{name}.weight"),
            )
        ),
        Rule("norm_f.weight", "decoder.final_norm.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix = "backbone."
    tied: ClassVar = {"lm_head.weight": "embeddings.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        model["num_layers"] = len(cls.types(config, 0))
        super().to_recipe(model, config)

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
        types = next((config[key] for key in keys if config.get(key)), "ME*-")
        return known_types([LETTERS.get(name, name) for name in types], cls.mixed, FULL, MLP, MOE)

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == MOE:
            rows = {key: row.read(config) for row in cls.expert_settings for key in row.keys}
            return {"attention": "none", "feedforward": merged(cls.experts, rows)}
        alone = {MLP: {"attention": "none"}}.get(name, {"feedforward": "none"})
        return {**super().over_layer(config, name), **alone}

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        letters = []
        for layer in layers:
            sparse = look(layer, "feedforward.type") == "experts"
            for row in cls.expert_settings if sparse else ():
                config[row.config_key] = row.write(look(layer["feedforward"], row.keys[0]))
            letters.append("M" if layer.get("mixer") else "*" if layer.get("attention") else "E" if sparse else "-")
        config.setdefault("intermediate_size", config["hidden_size"])  # of a type that no layer has
        config["num_hidden_layers"], config["hybrid_override_pattern"] = len(layers), "".join(letters)

    @classmethod
    def write_mixed(cls, config: Tree, mixed: Sequence[bool]) -> None:
        """Leave it to `write_types`, which knows more types."""
