"""Mixtral (Jiang et al. 2024), DBRX, and other decoders of Llama's kind with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    BIASES,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    Llama,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import (
    ACTIVATIONS,
    KINDS,
    SLIDING,
    ConfigJson,
    Fixed,
    Rope,
    Setting,
    amended,
    layers_of,
    look,
    set_kinds,
)
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

FEEDFORWARD = f"{LAYER}.feedforward"
STACKS = f"{FEEDFORWARD}.experts"
TOGETHER = "expert (slot inner) width -> slot expert inner width"  # an expert's gate and up in one matrix
APART = "expert inner width -> 1 expert inner width"
# Llama's settings except the feed-forward's
SHELL = amended(Llama.settings, without=("intermediate_size", "hidden_act", "mlp_bias"))
EXPERTS: Tree = {"type": "experts", "expert": {"type": "glu", "bias": False}, "router": {"type": "softmax"}}
BASE = merged(Llama.base, {"layer.feedforward": EXPERTS})
# DeepSeek-V3's router: sigmoid scores with a selection bias
SIGMOID: Tree = {"router": {"type": "sigmoid", "selection_bias": True}}


def expert_settings(
    num_experts: str = "num_experts",
    active: str = "num_experts_per_tok",
    d_ff: str = "moe_intermediate_size",
    activation: str = "hidden_act",
) -> tuple[Setting, ...]:
    """Return the settings that all families with experts share, with the family's key names."""
    return (
        Setting(num_experts, "layer.feedforward.num_experts", also=("num_experts", "num_local_experts")),
        Setting(active, "layer.feedforward.num_active", also=("num_experts_per_tok",)),
        Setting(d_ff, "layer.feedforward.expert.d_ff"),
        Setting(activation, "layer.feedforward.expert.activation", "silu", ACTIVATIONS),
    )


def expert_rules(
    block: str = "mlp", gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj", router: str = "gate"
) -> tuple[Rule, ...]:
    """Return the rules for the router and its experts: separate, or stacked with gate and up fused, as in memory."""
    each = f"{CHECKPOINT}.{block}.experts.{{expert}}"
    blocks = tuple(dict.fromkeys((block, "mlp")))
    routers = (
        Rule(f"{CHECKPOINT}.{name}.{router}.{{kind}}", f"{FEEDFORWARD}.router.projection.{{kind}}") for name in blocks
    )
    return (
        *spellings(*routers),
        Rule(f"{each}.{gate}.weight", f"{STACKS}.gate.weight"),
        Rule(f"{each}.{up}.weight", f"{STACKS}.up.weight"),
        Rule(f"{each}.{down}.weight", f"{STACKS}.down.weight"),
        *read_only(*(rule for name in blocks for rule in stacked_rules(name))),
    )


def gate_up_rule(checkpoint: str, layout: str = TOGETHER) -> Rule:
    """Return the rule for a tensor of all experts' gates and ups."""
    return Rule(checkpoint, (f"{STACKS}.gate.weight", f"{STACKS}.up.weight"), layout, APART, axes={"slot": 2})


def stacked_rules(block: str = "mlp") -> tuple[Rule, ...]:
    """Return the rules for stacked experts with gate and up fused, as in memory."""
    return (
        gate_up_rule(f"{CHECKPOINT}.{block}.experts.gate_up_proj"),
        Rule(f"{CHECKPOINT}.{block}.experts.down_proj", f"{STACKS}.down.weight"),
    )


def expert_rules_in_memory() -> tuple[Rule, ...]:
    """Return the rules for a router and its experts that are written stacked; separate ones are read too."""
    router, *separate = expert_rules()[:4]
    return (router, *stacked_rules(), *read_only(*separate))


def shared_rules(name: str = "shared_experts", block: str = "mlp") -> tuple[Rule, ...]:
    """Return the rules for the shared expert."""
    return tuple(
        Rule(f"{CHECKPOINT}.{block}.{name}.{part}_proj.{{kind}}", f"{FEEDFORWARD}.shared_expert.{part}.{{kind}}")
        for part in ("gate", "up", "down")
    )


def selection_rules(*blocks: str) -> tuple[Rule, ...]:
    """Return the rules for the selection bias. Export uses the first block; the others are only read."""
    return spellings(
        *(
            Rule(f"{CHECKPOINT}.{block}.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias")
            for block in blocks
        )
    )


SHARED_GATE = Rule("layers.{layer}.mlp.shared_expert_gate.weight", f"{FEEDFORWARD}.shared_gate.weight")


class Sparse(Llama):
    """Llama with experts; `is_dense` selects the layers that have a plain feed-forward instead."""

    base = BASE
    varying: ClassVar[tuple[str, ...]] = ("layer.feedforward",)
    settings = SHELL
    rules = (*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules())
    dense_key: ClassVar[str] = "intermediate_size"  # width of a plain feed-forward
    shared_key: ClassVar[str] = ""  # key of the number of shared experts, which form one wide expert

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        count, experts = model["num_layers"], model["layer"]["feedforward"]
        if config.get(cls.shared_key):
            experts["num_shared"] = int(config[cls.shared_key])
        if "shared_expert" in experts:
            experts["shared_expert"] = {**experts["expert"], **experts["shared_expert"]}
        dense = [cls.is_dense(config, layer) for layer in range(count)]
        if not any(dense):
            return
        plain = {**experts["expert"], "d_ff": config[cls.dense_key]}
        if all(dense):
            model["layer"]["feedforward"] = plain
            return
        kinds = ["dense" if each else "sparse" for each in dense]
        windows = model.get("layers", {})
        if windows:
            types = cls.types(config, count)
            kinds = [f"{KINDS.get(name, name)}+{kind}" for name, kind in zip(types, kinds, strict=True)]
        set_kinds(model, kinds, {})
        model["layers"] = {**windows, "dense": {"feedforward": plain}, "sparse": {}}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if cls.shared_key:
            config[cls.shared_key] = value_of(model, "layer.feedforward.num_shared", 0)
        layers = layers_of(model)
        dense = [look(layer, "feedforward.type") != "experts" for layer in layers]
        cls.write_dense(config, dense)
        widths = [look(layer, "feedforward.d_ff") for layer, plain in zip(layers, dense, strict=True) if plain]
        if widths:
            config[cls.dense_key] = widths[0]

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        """True if the layer has a plain feed-forward."""
        return False

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        """Record in `config` which layers have a plain feed-forward."""


class FirstDense(Sparse):
    """Base whose first layers, or those that config.json lists, have a plain feed-forward."""

    first_key: ClassVar[str] = "first_k_dense_replace"  # key of the number of first layers
    dense_layers: ClassVar[int] = 0  # its default
    listed_dense: ClassVar[bool] = False  # True if config.json may list the dense layers

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        if cls.listed_dense and config.get("mlp_layer_types"):
            return bool(config["mlp_layer_types"][layer] == "dense")
        return layer < int(config.get(cls.first_key, cls.dense_layers))

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        if cls.listed_dense:
            config["mlp_layer_types"] = ["dense" if each else "sparse" for each in dense]
        # for any other set of dense layers, the config reads back differently, so the family does not match
        config[cls.first_key] = list(dense).index(False) if False in dense else len(dense)


NORMALIZED = Setting("norm_topk_prob", "layer.feedforward.router.normalized", False)
NO_JITTER = Fixed("router_jitter_noise", (0.0, 0, None))
BY_NUMBER = expert_rules("block_sparse_moe", "w1", "w3", "w2")  # Mixtral's names of gate, up and down


@register("family", "mixtral")
class Mixtral(Sparse):
    """Mixtral: experts in every layer; a softmax over all experts, renormalized over the selected ones."""

    base = merged(BASE, {"layer.feedforward.router.normalized": True})
    heads = heads_of("Mixtral")
    settings = (
        *amended(SHELL, without=("attention_bias",), rms_norm_eps=1e-5),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    fixed = (NO_JITTER,)
    rules = (*ENDS, *NORMS, *ATTENTION, *BY_NUMBER)
    rope = Rope(theta=1000000.0)
    period = (SLIDING,)


class QwenMoe(Sparse):
    """Base of Qwen2-MoE and Qwen3-MoE: dense layers at regular intervals or listed."""

    fixed: ClassVar[tuple[Fixed, ...]] = (Fixed("use_sliding_window", (False,)),)
    derived: ClassVar[tuple[str, ...]] = ("sliding_window", "max_window_layers", "layer_types")

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        named = config.get("mlp_only_layers") or ()
        return layer in named or (layer + 1) % int(config.get("decoder_sparse_step", 1)) != 0

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["mlp_only_layers"] = [layer for layer, each in enumerate(dense) if each]
        config["decoder_sparse_step"] = 1


@register("family", "qwen2_moe")
class Qwen2Moe(QwenMoe):
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert; biases of queries, keys and values."""

    base = merged(BASE, {"layer.feedforward": {"shared_expert": {"type": "glu"}, "shared_gate": True}})
    heads = heads_of("Qwen2Moe")
    settings = (
        *amended(
            SHELL, Setting("qkv_bias", "layer.attention.bias", True, BIASES), without=("head_dim", "attention_bias")
        ),
        *expert_settings(),
        NORMALIZED,
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
    )
    rules = (*(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules("shared_expert")), SHARED_GATE)


@register("family", "qwen3_moe")
class Qwen3Moe(QwenMoe):
    """Qwen3-MoE: per-head norms of queries and keys; many small experts, no shared expert."""

    base = merged(BASE, {"layer.attention.qk_norm": True})
    heads = heads_of("Qwen3Moe")
    settings = (*SHELL, *expert_settings(), NORMALIZED)


@register("family", "olmoe")
class Olmoe(Sparse):
    """OLMoE: one norm of all query heads together, and one of all key heads."""

    base = merged(BASE, {"layer.attention": {"qk_norm": True, "qk_norm_at": "width"}})
    heads = heads_of("Olmoe")
    settings = (*amended(SHELL, without=("head_dim",)), *expert_settings(d_ff="intermediate_size"), NORMALIZED)
    fixed: ClassVar[tuple[Fixed, ...]] = (Fixed("clip_qkv", (None,)),)  # OLMoE clips after the norm, tfkit before it
    rules = (*ENDS, *NORMS, *ATTENTION, *expert_rules())


@register("family", "flex_olmo")
class FlexOlmo(Olmoe):
    """FlexOlmo: OLMoE with norms of the sublayer outputs."""

    base = merged(Olmoe.base, {"layer.residual": "branch_norm"})
    heads = heads_of("FlexOlmo")
    fixed = ()
    rules = (
        *(*ENDS, *ATTENTION, *expert_rules()),
        *norm_rules(attention_norm="post_attention_layernorm", feedforward_norm="post_feedforward_layernorm"),
    )
    rope = Rope(theta=500000.0)


@register("family", "minimax_m2")
class MiniMaxM2(Sparse):
    """MiniMax-M2: sigmoid scores with a selection bias, partial rotary positions, norms over all heads."""

    base = merged(Olmoe.base, {"layer.feedforward": SIGMOID, "layer.feedforward.router.normalized": True})
    heads = heads_of("MiniMaxM2")
    settings = (
        *amended(SHELL, without=("attention_bias",)),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    fixed = (NO_JITTER,)
    rules = (*ENDS, *NORMS, *ATTENTION, *BY_NUMBER, *selection_rules("block_sparse_moe", "mlp", "mlp.gate"))
    rope = Rope(theta=5000000.0, partial=True)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        position, turned = super().position(config, name), config.get("rotary_dim")
        fractions = (look(config, f"{at}partial_rotary_factor") for at in ("", "rope_parameters.", "rope_scaling."))
        if turned is not None and not any(fractions):  # published files state rotary channels instead
            heads = config["num_attention_heads"]
            position["fraction"] = turned / (config.get("head_dim") or config["hidden_size"] // heads)
        return position


BLOCK = "blocks.{layer}"
DBRX_ATTENTION = f"{BLOCK}.norm_attn_norm"

# common key -> DBRX key
OWN = {
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}
ROWS = "(expert inner) width -> expert inner width"  # all experts stacked along the rows


@register("family", "dbrx")
class Dbrx(Sparse):
    """DBRX: 16 experts, 4 per token; layer norms without biases; clipped queries, keys and values."""

    base = merged(BASE, {"layer.norm": {"type": "layer_norm", "bias": False}})
    heads = heads_of("Dbrx")
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048, also=(OWN["max_position_embeddings"],)),
        Setting("hidden_size", "d_model", also=(OWN["hidden_size"],)),
        Setting("num_hidden_layers", "num_layers", also=(OWN["num_hidden_layers"],)),
        Setting("num_attention_heads", "layer.attention.num_heads", also=(OWN["num_attention_heads"],)),
        Setting("attn_config.kv_n_heads", "layer.attention.num_kv_heads", 1),
        Setting("attn_config.clip_qkv", "layer.attention.clip", None),
        Setting("attn_config.attn_pdrop", "layer.attention.dropout", 0.0),
        Setting("resid_pdrop", "layer.dropout", 0.0),
        Setting("emb_pdrop", "embedding.dropout", 0.0),
        Setting("ffn_config.moe_num_experts", "layer.feedforward.num_experts", 4),
        Setting("ffn_config.moe_top_k", "layer.feedforward.num_active", 1),
        Setting("ffn_config.ffn_hidden_size", "layer.feedforward.expert.d_ff"),
        Setting("ffn_config.ffn_act_fn.name", "layer.feedforward.expert.activation", "silu", ACTIVATIONS),
        Setting("initializer_range", "init.std", 0.02),
    )
    derived = ("num_key_value_heads", "ffn_config.hidden_size")
    fixed = (Fixed("ffn_config.moe_jitter_eps", (None, 0, 0.0)),)
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{DBRX_ATTENTION}.norm_1.weight", f"{LAYER}.attention_norm.weight"),
        Rule(
            f"{DBRX_ATTENTION}.attn.Wqkv.weight",
            tuple(f"{LAYER}.attention.{name}.weight" for name in ("query", "key", "value")),
        ),
        Rule(f"{DBRX_ATTENTION}.attn.out_proj.weight", f"{LAYER}.attention.output.weight"),
        Rule(f"{DBRX_ATTENTION}.norm_2.weight", f"{LAYER}.feedforward_norm.weight"),
        Rule(f"{BLOCK}.ffn.router.layer.weight", f"{FEEDFORWARD}.router.projection.weight"),
        Rule(f"{BLOCK}.ffn.experts.mlp.w1", f"{STACKS}.gate.weight", ROWS),
        Rule(f"{BLOCK}.ffn.experts.mlp.v1", f"{STACKS}.up.weight", ROWS),
        Rule(f"{BLOCK}.ffn.experts.mlp.w2", f"{STACKS}.down.weight", "(expert inner) out -> expert out inner"),
        Rule("norm_f.weight", "decoder.final_norm.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix = "transformer."
    tied = {"lm_head.weight": "wte.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        power = look(config, "ffn_config.moe_normalize_expert_weights", 1.0)
        if power not in (None, 1):
            raise DataError(f"config.json: moe_normalize_expert_weights: only none or 1 is supported, got {power}")
        override(model, {"layer.feedforward.router.normalized": power is not None})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["attn_config"]["rope_theta"] = value_of(model, "position.theta")
        normalized = value_of(model, "layer.feedforward.router.normalized")
        for common, own in OWN.items():
            config[own] = config.pop(common)
        config["ffn_config"]["moe_normalize_expert_weights"] = 1.0 if normalized else None

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        theta = look(config, "attn_config.rope_theta")  # used by DBRX's published files
        return cls.rope.read(config if look(config, "rope_parameters") or theta is None else {"rope_theta": theta})
