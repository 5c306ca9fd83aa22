"""The decoder of Llama 4 (Meta 2025), GPT-OSS, Granite's experts, and decoders with shared experts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    GATED_NAMES,
    LAYER,
    NORMS,
    attention_rules,
    feedforward_rules,
    heads_of,
)
from tfkit.interop.huggingface.families.mistral import MULTIPLIERS, Granite
from tfkit.interop.huggingface.families.mixtral import (
    BASE,
    FEEDFORWARD,
    NO_JITTER,
    SHELL,
    STACKS,
    Sparse,
    expert_rules,
    expert_settings,
    gate_up_rule,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

BLOCK = f"{CHECKPOINT}.block_sparse_moe"
SHARED = f"{FEEDFORWARD}.shared_expert"
# names of GraniteMoe's tensors in memory
IN_MEMORY = (
    Rule(f"{BLOCK}.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
    gate_up_rule(f"{BLOCK}.experts.gate_up_proj"),
    Rule(f"{BLOCK}.experts.down_proj", f"{STACKS}.down.weight"),
)
SHARED_RULES = (
    Rule(f"{CHECKPOINT}.shared_mlp.input_linear.weight", (f"{SHARED}.gate.weight", f"{SHARED}.up.weight")),
    Rule(f"{CHECKPOINT}.shared_mlp.output_linear.weight", f"{SHARED}.down.weight"),
)


@register("family", "granitemoe")
class GraniteMoe(Granite, Sparse):
    """Granite with experts: Granite's factors, a softmax over the selected experts."""

    base = merged(BASE, {"layer.feedforward.router.over": "chosen"})
    heads = heads_of("GraniteMoe")
    settings = (
        *amended(SHELL, *MULTIPLIERS, without=("head_dim",)),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        Rule(f"{BLOCK}.router.layer.weight", f"{FEEDFORWARD}.router.projection.weight"),
        gate_up_rule(f"{BLOCK}.input_linear.weight"),
        Rule(f"{BLOCK}.output_linear.weight", f"{STACKS}.down.weight"),
        *read_only(*IN_MEMORY),
    )


@register("family", "granitemoeshared")
class GraniteMoeShared(GraniteMoe):
    """Granite with routed experts and a shared expert."""

    heads = heads_of("GraniteMoeShared")
    rules = (*GraniteMoe.rules, *SHARED_RULES)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("shared_intermediate_size"):
            override(model, {"layer.feedforward.shared_expert.d_ff": config["shared_intermediate_size"]})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["shared_intermediate_size"] = look(value_of(model, "layer.feedforward.shared_expert") or {}, "d_ff", 0)


UNSTACKED = "1 expert -> expert"
TRANSPOSED = "expert inner out -> expert out inner"
TRANSPOSED_GATE_UP = "expert width (slot inner) -> slot expert inner width"


@register("family", "hunyuan_v1_moe")
class HunyuanMoe(Sparse):
    """Hunyuan-Large: norms of rotated queries and keys, a shared expert."""

    base = merged(
        BASE,
        {
            "layer.attention": {"qk_norm": True, "qk_norm_at": "rotated"},
            "layer.feedforward": {"router": {"normalized": True}, "num_shared": 1},
        },
    )
    heads = heads_of("HunYuanMoEV1")
    settings = (*SHELL, *expert_settings(active="moe_topk", d_ff="intermediate_size"))
    rules = (
        *(*ENDS, *NORMS, *attention_rules(norms=("query_layernorm", "key_layernorm"))),
        *(*expert_rules(router="gate.wg"), *shared_rules("shared_mlp")),
    )
    rope = Rope(alpha=True)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        experts = model["layer"]["feedforward"]
        for key in ("num_experts", "num_active"):
            experts[key] = _agreed(experts[key], key)
        super().to_recipe(model, config)


def _agreed(value: object, key: str) -> object:
    """Return a number that config.json may list once per layer. Raise DataError if it differs between layers."""
    if not isinstance(value, list):
        return value
    if len(set(value)) > 1:
        raise DataError(f"config.json: {key} differs between layers ({value}), which is not supported")
    return value[0]


@register("family", "ernie4_5_moe")
class Ernie45Moe(Sparse):
    """ERNIE 4.5 with experts in some layers: softmax scores with a selection bias."""

    base = merged(BASE, {"layer.feedforward.router": {"selection_bias": True, "normalized": True}})
    heads = heads_of("Ernie4_5_Moe")
    settings = (
        *amended(SHELL, without=("attention_bias", "attention_dropout")),
        *expert_settings("moe_num_experts", "moe_k"),
    )
    fixed = (Fixed("use_bias", (False,)),)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules()),
        *spellings(
            *(
                Rule(f"{CHECKPOINT}.{name}.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias", UNSTACKED)
                for name in ("mlp.moe_statics", "mlp.gate.moe_statics")
            )
        ),
    )
    rope, ties = Rope(theta=500000.0, layout="interleaved"), True
    shared_key = "moe_num_shared_experts"

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        last = config.get("moe_layer_end_index", -1)
        last = config["num_hidden_layers"] - 1 if last is None or last == -1 else last
        inside = config.get("moe_layer_start_index", 1) <= layer <= last
        return not inside or (layer + 1) % int(config.get("moe_layer_interval", 1)) != 0

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        sparse = [layer for layer, each in enumerate(dense) if not each]
        steps = {after - before for before, after in pairwise(sparse)}
        config["moe_layer_interval"] = steps.pop() if len(steps) == 1 else 1
        config["moe_layer_start_index"] = sparse[0] if sparse else len(dense)
        config["moe_layer_end_index"] = sparse[-1] if sparse else -1


@register("family", "aria_text")
class AriaText(Sparse):
    """Aria's decoder: a softmax over the selected experts, transposed expert weights."""

    base = merged(BASE, {"layer.feedforward.router.over": "chosen"})
    heads = heads_of("AriaText")
    settings = (
        *SHELL,
        *amended(expert_settings("moe_num_experts", "moe_topk", "intermediate_size"), without=("hidden_act",)),
        Setting("moe_num_shared_experts", "layer.feedforward.num_shared", 2),
    )
    # hidden_act would affect only the shared expert
    fixed = (Fixed("mlp_bias", (False,)), Fixed("hidden_act", ("silu", "swish")))
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *shared_rules()),
        Rule(f"{CHECKPOINT}.mlp.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
        *spellings(
            *(
                gate_up_rule(f"{CHECKPOINT}.mlp.experts.{name}", TRANSPOSED_GATE_UP)
                for name in ("fc1.weight", "gate_up_proj")
            )
        ),
        *spellings(
            *(
                Rule(f"{CHECKPOINT}.mlp.experts.{name}", f"{STACKS}.down.weight", TRANSPOSED)
                for name in ("fc2.weight", "down_proj")
            )
        ),
    )


@register("family", "gpt_oss")
class GptOss(Sparse):
    """GPT-OSS: a window in every second layer, attention sinks, a clipped SwiGLU with biases."""

    base = merged(
        BASE,
        {
            "layer.attention.sinks": True,
            "layer.feedforward.expert": {"bias": True, "activation": "quick_gelu", "up_offset": 1.0},
            "layer.feedforward.router": {"over": "chosen", "bias": True},
        },
    )
    heads = heads_of("GptOss")
    settings = (
        *amended(SHELL, attention_bias=True),
        Setting("num_local_experts", "layer.feedforward.num_experts", 128),
        Setting("num_experts_per_tok", "layer.feedforward.num_active", 4, also=("experts_per_token",)),
        Setting("intermediate_size", "layer.feedforward.expert.d_ff"),
        Setting("swiglu_limit", "layer.feedforward.expert.limit", 7.0),
    )
    fixed = (Fixed("swiglu_alpha", (1.702,)), Fixed("hidden_act", ("silu",)))  # ignored by the implementation
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        Rule(f"{CHECKPOINT}.self_attn.sinks", f"{LAYER}.attention.sinks"),
        Rule(f"{CHECKPOINT}.mlp.router.{{kind}}", f"{FEEDFORWARD}.router.projection.{{kind}}"),
        gate_up_rule(f"{CHECKPOINT}.mlp.experts.gate_up_proj", "expert width (inner slot) -> slot expert inner width"),
        Rule(
            f"{CHECKPOINT}.mlp.experts.gate_up_proj_bias",
            (f"{STACKS}.gate.bias", f"{STACKS}.up.bias"),
            "expert (inner slot) -> slot expert inner",
            "expert inner -> 1 expert inner",
            axes={"slot": 2},
        ),
        Rule(f"{CHECKPOINT}.mlp.experts.down_proj", f"{STACKS}.down.weight", TRANSPOSED),
        Rule(f"{CHECKPOINT}.mlp.experts.down_proj_bias", f"{STACKS}.down.bias"),
    )
    rope = Rope(theta=150000.0)
    listed, window = True, 128
    period: ClassVar[tuple[str, ...]] = (SLIDING, FULL)


CHUNKED = "chunked_attention"  # layer type with rotary positions and chunks
LLAMA4_BLOCK = f"{CHECKPOINT}.feed_forward"


@register("family", "llama4")
class Llama4(Sparse):
    """Llama 4: three chunked rotary layers for each full layer without positions; router weights scale expert input."""

    model_types = ("llama4_text",)
    varying = ("position", "layer.feedforward")
    base = merged(BASE, {"layer.feedforward": {"router": {"type": "sigmoid"}, "weigh": "input", "num_shared": 1}})
    heads = heads_of("Llama4")
    settings = (*SHELL, *expert_settings("num_local_experts", d_ff="intermediate_size"))
    fixed = (NO_JITTER,)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        *(*feedforward_rules("feed_forward", **GATED_NAMES), *shared_rules("shared_expert", "feed_forward")),
        Rule(f"{LLAMA4_BLOCK}.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
        gate_up_rule(f"{LLAMA4_BLOCK}.experts.gate_up_proj", TRANSPOSED_GATE_UP),
        Rule(f"{LLAMA4_BLOCK}.experts.down_proj", f"{STACKS}.down.weight", TRANSPOSED),
    )
    rope = Rope(theta=500000.0, layout="interleaved")
    dense_key = "intermediate_size_mlp"

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        every = int(config.get("no_rope_layer_interval", 4))
        turns = config.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
        words = [CHUNKED if turn else FULL for turn in turns]
        if (config.get("layer_types") or words) != words:
            raise DataError(
                "config.json: layer_types, no_rope_layers: expected chunks exactly in the layers with rotary positions"
            )
        return [SLIDING if turn else FULL for turn in turns]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == FULL:
            return {}
        kind: Tree = {"mask": {"type": "chunk", "size": config.get("attention_chunk_size", 8192)}}
        if config.get("use_qk_norm", True):
            kind["attention"] = {"qk_norm": {"type": "rms_norm", "affine": False}, "qk_norm_at": "rotated"}
        return kind

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        if name == SLIDING:
            return super().position(config, name)
        if not config.get("attn_temperature_tuning", True):
            return None
        beta, length = float(config.get("attn_scale", 0.1)), int(config.get("floor_scale", 8192))
        return {"type": "log_temperature", "beta": beta, "length": length, "offset": 1}

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        step = int(config.get("interleave_moe_layer_step", 1))
        named = config.get("moe_layers")
        return (layer + 1) % step != 0 if named is None else layer not in named

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["moe_layers"] = [layer for layer, each in enumerate(dense) if not each]

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        sizes = {layer["mask"]["size"] for layer in layers if layer["mask"]}
        if len(sizes) > 1:
            raise DataError("config.json cannot express chunks of several sizes")
        turns = [bool(layer["mask"]) for layer in layers]
        config["layer_types"] = [CHUNKED if turn else FULL for turn in turns]
        config["no_rope_layers"] = [int(turn) for turn in turns]
        config["attention_chunk_size"] = next(iter(sizes), None)
        config["use_qk_norm"] = any(look(layer, "attention.qk_norm") for layer in layers)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        turning = [layer for layer in layers if look(layer, "position.type") == "rotary"]
        super().write_positions(config, turning)
        still = next((layer["position"] for layer in layers if layer not in turning and layer["position"]), None)
        config["attn_temperature_tuning"] = still is not None
        if still is not None:
            config |= {"attn_scale": still["beta"], "floor_scale": still["length"]}
