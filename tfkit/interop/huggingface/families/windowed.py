"""Decoders of 2026 with windows in most layers: Mellum 2, Flint, Laguna, Granite with sinks, LFM3."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.bounds import PositionEntry, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    UNPLACED,
    ByType,
    Llama,
    LocalTurns,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.families.llama4 import IN_MEMORY, SHARED_RULES, GraniteMoeShared
from tfkit.interop.huggingface.families.mistral import Granite
from tfkit.interop.huggingface.families.mixers import Lfm2, Short, short_rules
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    NORMALIZED,
    SHELL,
    SIGMOID,
    FirstDense,
    QwenMoe,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, Switch, amended
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

SINKS = Rule(f"{CHECKPOINT}.self_attn.sinks", f"{LAYER}.attention.sinks")
# settings that Mellum and Flint share
SMALL = (
    *amended(SHELL, max_position_embeddings=131072, num_key_value_heads=4, head_dim=128),
    *(*expert_settings(), *amended((NORMALIZED,), norm_topk_prob=True)),
)


@register("family", "mellum")
class Mellum(ByType, FirstDense):
    """Mellum 2 (JetBrains 2026): Qwen3-MoE with windows in listed layers, and a RoPE for each layer type."""

    base = merged(BASE, {"layer.attention": {"qk_norm": True}})
    heads = heads_of("Mellum")
    settings = SMALL
    window, listed_dense, ahead, recent = 1024, True, True, True
    rope, local = Rope(theta=500000.0, partial=True), Rope(partial=True)


@register("family", "flint")
class Flint(LocalTurns, QwenMoe):
    """Flint (RecursiveSI 2026): rotation in windowed layers only, sinks, unbiased sigmoid scores, a shared expert."""

    base = merged(
        BASE,
        {
            "layer.attention": {"qk_norm": True, "sinks": True},
            "layer.feedforward": {"router": {"type": "sigmoid"}, "shared_expert": {"type": "glu"}},
        },
    )
    heads = heads_of("Flint")
    settings = amended(
        SMALL,
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
        max_position_embeddings=262144,
    )
    fixed, derived = (), ()
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules("shared_expert")),
        *spellings(Rule(f"{CHECKPOINT}.self_attn.softmax_offset", f"{LAYER}.attention.sinks"), SINKS),
    )
    window = 513

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        if config.get("layer_types"):
            return super().types(config, count)
        return [FULL if layer < 2 or layer % 4 == 1 or layer == count - 1 else SLIDING for layer in range(count)]

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        return super().is_dense({"mlp_only_layers": [0, 1], **config}, layer)


@register("family", "laguna")
class Laguna(ByType, FirstDense):
    """Laguna (Poolside 2026): a softplus gate for each head; numbers of heads, windows and dense layers are listed."""

    base = merged(
        BASE,
        {
            "layer.attention": {"qk_norm": True, "gate": {"over": "head", "activation": "softplus"}},
            "layer.feedforward": {
                "router": {**SIGMOID["router"], "normalized": True},
                "shared_expert": {"type": "glu"},
            },
        },
    )
    heads = heads_of("Laguna")
    settings = (
        *amended(SHELL, max_position_embeddings=131072, num_key_value_heads=8, head_dim=128),
        *expert_settings(),
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
        Setting("moe_routed_scaling_factor", "layer.feedforward.router.scale", 1.0),
    )
    fixed = (Fixed("gating", (True, "per-head")), Fixed("moe_router_logit_softcapping", (0.0, 0, None)))
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules("shared_expert")),
        *(*read_only(*shared_rules()), *selection_rules("mlp.experts", "mlp.gate")),
        Rule(f"{CHECKPOINT}.self_attn.g_proj.weight", f"{LAYER}.attention.gate.projection.weight"),
    )
    window, dense_layers, listed_dense, recent = 512, 1, True, True
    rope, local = Rope(theta=500000.0, partial=True), Rope(partial=True)

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        usual = config["num_attention_heads"]
        heads = config.get("num_attention_heads_per_layer") or [usual] * count
        types = zip(super().types(config, count), heads, strict=True)
        return [name if each == usual else f"{name}_{each}_heads" for name, each in types]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind = SLIDING if name.startswith(SLIDING) else FULL
        own = {"num_kv_heads": config["num_key_value_heads"], "head_dim": config["head_dim"]}
        more = {"attention": {"num_heads": int(name.split("_")[-2]), **own}} if name != kind else {}
        return {**super().over_layer(config, kind), **more}

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Tree | None:
        kind = SLIDING if name.startswith(SLIDING) else FULL
        half = {"partial_rotary_factor": 0.5} if kind == FULL and not config.get("rope_parameters") else {}
        placed: Tree | None = super().position({**config, **half}, kind)
        return placed

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["num_attention_heads_per_layer"] = [layer["attention"]["num_heads"] for layer in layers]


class ThetaByLayer(Llama):
    """Base with sinks and a rotary theta for each layer; 0 stands for a layer without positions."""

    listed, period, window = True, (FULL, SLIDING, SLIDING, SLIDING), 128

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        types, usual = super().types(config, count), cls.rope.read(config)["theta"]
        thetas = config.get("layer_rope_theta") or [usual] * count
        return [
            name if theta == usual else f"{name}_theta_{theta:.0f}" if theta else name + UNPLACED
            for name, theta in zip(types, thetas, strict=True)
        ]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        return super().over_layer(config, SLIDING if name.startswith(SLIDING) else FULL)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Tree | None:
        if name.endswith(UNPLACED):
            return None
        thetas = (theta for theta in config.get("layer_rope_theta") or () if name.endswith(f"_theta_{theta:.0f}"))
        part = super().position(config, name)
        return {**part, "theta": float(next(thetas, part["theta"]))}

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        positions = [layer["position"] for layer in layers]
        first = next((one for one in positions if one), None)
        config["rope_parameters"] = cls.rope.write(first or cls.rope.read({}) | {"scaling": None}, config)
        config["layer_rope_theta"] = [one["theta"] if one else 0 for one in positions]


@register("family", "granite_swa")
class GraniteSwa(ThetaByLayer, Granite):
    """Granite Swash (IBM 2026): Granite with sinks, windows in three of four layers, a rotary theta for each layer."""

    base = merged(Granite.base, {"layer.attention": {"sinks": True}})
    heads = heads_of("GraniteSWA")
    settings = amended(Granite.settings, max_position_embeddings=8192, num_key_value_heads=4, rms_norm_eps=1e-5)
    rules = (*Granite.rules, SINKS)
    ties = True


@register("family", "granitemoe_swa")
class GraniteMoeSwa(ThetaByLayer, GraniteMoeShared):
    """Granite Swash with experts: GraniteMoeShared with sinks, windows and a rotary theta for each layer."""

    base = merged(GraniteMoeShared.base, {"layer.attention": {"sinks": True}})
    heads = heads_of("GraniteMoeSWA")
    rules = (*ENDS, *NORMS, *ATTENTION, *IN_MEMORY, *SHARED_RULES, SINKS)


BY_HEAD: Tree = {"over": "head", "activation": {"type": "sigmoid"}, "bias": False}
# rotation of LFM3's layers by type, if config.json does not state it
PROPORTIONAL = {
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}


@register("family", "lfm3")
class Lfm3(ByType, Short):
    """LFM3 (Liquid AI 2026): LFM2 with windows in some layers, gated heads and norms around sublayers."""

    varying = ("layer.attention", "layer.residual")
    base = Lfm2.base
    heads = heads_of("Lfm3")
    settings = amended(
        Short.settings,
        Setting("head_dim", "layer.attention.head_dim", 128),
        Setting("attention_bias", "layer.attention.bias", False),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("use_sandwich_norm", "layer.residual.type", True, {True: "sandwich", False: "pre_norm"}),
        Switch("use_attention_gate", "layer.attention.gate", True, on=BY_HEAD),
        num_key_value_heads=4,
    )
    mixer_settings = amended(Short.mixer_settings, conv_L_cache=7)
    rules = (
        *(rule for rule in short_rules() if "self_attn" not in rule.checkpoint_names[0]),
        *(*ATTENTION, Rule(f"{CHECKPOINT}.self_attn.gate_proj.weight", f"{LAYER}.attention.gate.projection.weight")),
        *read_only(Rule(f"{CHECKPOINT}.self_attn.g_proj.weight", f"{LAYER}.attention.gate.projection.weight")),
        *norm_rules(**{"{mixing}_output_norm": "post_operator_norm", "feedforward_output_norm": "post_ffn_norm"}),
    )
    attending = (FULL, SLIDING)
    window, recent = 256, True

    @classmethod
    def usual_types(cls, config: ConfigJson, count: int) -> list[str]:
        turn = (SLIDING, cls.mixed, FULL, cls.mixed)
        return [turn[layer % 4] if layer else cls.mixed for layer in range(count)]

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        rotated = config if config.get("rope_parameters") else {**config, "rope_parameters": PROPORTIONAL}
        return super().position(rotated, FULL if name == cls.mixed else name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        types = zip(config["layer_types"], layers, strict=True)
        config["layer_types"] = [SLIDING if layer["mask"] else name for name, layer in types]
        config["sliding_window"] = next((layer["mask"]["size"] for layer in layers if layer["mask"]), cls.window)
