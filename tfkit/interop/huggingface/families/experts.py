"""Decoders with experts of 2026: Mistral Small 4, A.X-K1, MiMo-V2, Kolibri and Command A+."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.deepseek import (
    GROUPS,
    HEAD_NORMS,
    LATENT,
    LATENT_RULES,
    MIXTURE_RULES,
    NORMALIZED,
    ROUTED,
    DeepseekV3,
    Grouped,
    LatentExperts,
)
from tfkit.interop.huggingface.families.gemma import Cohere, Cohere2, every
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    BIASES,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    ByType,
    LocalTurns,
    heads_of,
    sandwich_rules,
)
from tfkit.interop.huggingface.families.mistral import Growing
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    EXPERTS,
    FEEDFORWARD,
    SHELL,
    SIGMOID,
    FirstDense,
    Sparse,
    expert_rules,
    expert_rules_in_memory,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.families.phi import Glm4
from tfkit.interop.huggingface.families.windowed import SINKS
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, amended
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings


@register("family", "mistral4")
class Mistral4(Growing, LatentExperts):
    """Mistral Small 4 (2026): DeepSeek-V3 with a softmax over experts and scores that grow with the position."""

    base = merged(BASE, {"layer.attention": {**LATENT, "bias": False}})
    heads = heads_of("Mistral4")
    settings = amended(
        (*LatentExperts.settings, NORMALIZED),
        max_position_embeddings=1048576,
        q_lora_rank=1024,
        kv_lora_rank=256,
        qk_nope_head_dim=64,
    )
    rules = (*ENDS, *NORMS, *LATENT_RULES, *GATED, *expert_rules_in_memory(), *shared_rules())
    derived = (*LatentExperts.derived, "rope_parameters.partial_rotary_factor")
    either = recent = True
    stretched = {
        "rope_type": "yarn",
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


PREFIX, ROUTER = "prefix_dense_sliding_window_pattern", "layer.feedforward.router"
COMBINED = {"average": "mean", "sum": "sum"}
OUTPUT_NORM = f"{FEEDFORWARD}.output_norm.weight"


@register("family", "axk1")
class AXK1(DeepseekV3):
    """A.X-K1 (SK Telecom 2026): DeepSeek-V3 with a norm of the experts' output."""

    base = merged(DeepseekV3.base, {"layer.feedforward.output_norm": True})
    heads = heads_of("AXK1")
    fixed = (Fixed("moe_layer_freq", (1,)),)
    rules = (*DeepseekV3.rules, Rule(f"{CHECKPOINT}.post_mlp_layernorm.weight", OUTPUT_NORM))
    rules = (*rules, *read_only(Rule(f"{CHECKPOINT}.mlp.post_mlp_layernorm.weight", OUTPUT_NORM)))
    zeros = (f"{FEEDFORWARD}.router.selection_bias",)  # absent in the published files
    dropped = (f"{CHECKPOINT}.post_mlp_layernorm.weight",)  # of layers with a plain feed-forward
    dense_layers, listed_dense = 1, True


@register("family", "mimo_v2_flash")
class MiMoV2Flash(ByType, Grouped):
    """MiMo-V2-Flash (Xiaomi 2025): scaled values; sinks and twice the key-value heads in windowed layers."""

    base = merged(BASE, {"layer.feedforward": SIGMOID})
    heads = heads_of("MiMoV2Flash")
    settings = (
        *amended(
            SHELL,
            Setting("attention_bias", "layer.attention.bias", False, BIASES),
            Setting("v_head_dim", "layer.attention.value_dim", 128),
            Setting("attention_value_scale", "layer.attention.value_scale", 0.707),
            max_position_embeddings=131072,
            num_key_value_heads=4,
            head_dim=192,
            rms_norm_eps=1e-5,
        ),
        *(*ROUTED, *GROUPS, NORMALIZED),
    )
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *MIXTURE_RULES),
        *spellings(Rule(f"{CHECKPOINT}.self_attn.attention_sink_bias", f"{LAYER}.attention.sinks"), SINKS),
    )
    window, dense_layers, listed_dense, shared_key, ahead, recent = 129, 1, True, "", True, True
    rope, local = Rope(theta=5000000.0, fraction=0.334, partial=True), Rope(fraction=0.334, partial=True)

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        if config.get("layer_types"):
            return super().types(config, count)
        return [SLIDING if layer and (layer + 1) % 6 else FULL for layer in range(count)]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == FULL:
            return {}
        size, before = config.get("sliding_window", cls.window), config.get("sliding_window_size")
        heads = {"num_kv_heads": 2 * int(config.get("num_key_value_heads", 4)), "sinks": True}
        return {"mask": {"type": "window", "size": size if before is None else before + 1}, "attention": heads}

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        for layer in layers:
            heads = layer["attention"]["num_kv_heads"] or layer["attention"]["num_heads"]
            config["num_key_value_heads"] = heads // 2 if layer["mask"] else heads


@register("family", "kolibri1")
class Kolibri1(LocalTurns, Sparse):
    """Kolibri 1 (Aleph Alpha 2026): norms around sublayers, experts chosen by logit, rotation only in windows."""

    base = merged(
        HEAD_NORMS,
        {
            "layer.residual.type": "sandwich",
            "layer.feedforward": {"router": {"selection": "logits"}, "shared_expert": {"type": "glu"}},
        },
    )
    heads = heads_of("Kolibri1")
    settings = (
        *amended(
            SHELL, without=("attention_bias",), max_position_embeddings=262144, num_key_value_heads=4, head_dim=128
        ),
        *(*expert_settings(), *amended((NORMALIZED,), norm_topk_prob=False)),
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
    )
    rules = (
        *(*ENDS, *ATTENTION, *expert_rules(), *shared_rules()),
        *sandwich_rules("post_attn_norm", "post_attention_layernorm", "post_ffn_norm"),
        Rule(f"{CHECKPOINT}.moe.router.expert_bias", f"{FEEDFORWARD}.router.selection_bias"),
        *read_only(*Glm4.rules, *selection_rules("mlp.gate")),  # names in memory
    )
    window, recent = 513, True

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 5)


TURNED = "_with_position"  # suffix of the type of rotated layers without a window


@register("family", "cohere2_moe")
class Cohere2Moe(Cohere2, FirstDense):
    """Command A+ (Cohere 2026): Command R7B with experts, averaged with shared ones; dense layers may be rotated."""

    varying: ClassVar = ("layer.feedforward", "layer.norm")
    base = merged(Cohere2.base, {"layer.feedforward": EXPERTS})
    heads = heads_of("Cohere2Moe")
    settings = (
        *amended(Cohere.settings, without=("intermediate_size", "hidden_act", "layer_norm_eps")),
        Setting("head_dim", "layer.attention.head_dim", 128),
        Setting("expert_selection_fn", f"{ROUTER}.type", "softmax", {name: name for name in ("softmax", "sigmoid")}),
        *(*expert_settings(d_ff="intermediate_size"), NORMALIZED),
        Setting("shared_expert_combination_strategy", "layer.feedforward.combine", "average", COMBINED),
    )
    rules = (*ENDS, *Cohere.rules[len(ENDS) :][:1], *ATTENTION, *GATED, *expert_rules(), *shared_rules())
    dense_key, shared_key, listed_dense, recent = "prefix_dense_intermediate_size", "num_shared_experts", True, True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        eps = config.get("rms_norm_eps")
        norm = {"type": "layer_norm", "bias": False, "eps": config.get("layer_norm_eps", 1e-5)}
        override(model, {"layer.norm": norm if eps is None else {"type": "rms_norm", "eps": eps}})
        if value_of(model, f"{ROUTER}.type") == "softmax":
            override(model, {f"{ROUTER}.over": "chosen", f"{ROUTER}.normalized": False})
        if not config.get(cls.shared_key):
            override(model, {"layer.feedforward.combine": "sum"})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        key = "rms_norm_eps" if value_of(model, "layer.norm.type") == "rms_norm" else "layer_norm_eps"
        config[key] = value_of(model, "layer.norm.eps")

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        dense, pattern = [cls.is_dense(config, layer) for layer in range(count)], config.get(PREFIX, 1)
        types = super().types(config, count)
        if not config.get("layer_types"):
            first = int(config.get("first_k_dense_replace", 0))
            before = [SLIDING if (layer + 1) % pattern else FULL for layer in range(first)]
            types = before + super().types(config, count - first)
        turned = [plain and pattern == 1 and name == FULL for plain, name in zip(dense, types, strict=True)]
        return [name + TURNED if turns else name for name, turns in zip(types, turned, strict=True)]

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return super().position(config, SLIDING if name.endswith(TURNED) else name)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_positions(config, layers)
        full = [layer for layer in layers if not layer["mask"] and layer["feedforward"]["type"] != "experts"]
        config[PREFIX] = 1 if all(layer["position"] for layer in full) else 2
