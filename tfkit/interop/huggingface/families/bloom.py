"""BLOOM (BigScience 2022), Falcon (Almazrouei et al. 2023) and MPT (MosaicML 2023)."""

from __future__ import annotations

import math
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.gpt_neo import GROUPED, INNER, QKV, ClassicDecoder, check_inner, heads_of, named
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Rope, Setting, look, sizes
from tfkit.interop.huggingface.tensors import Rule

CHECKPOINT = "h.{layer}"
BODY = (
    Rule("word_embeddings.weight", "decoder.embedding.tokens.weight"),
    Rule(f"{CHECKPOINT}.self_attention.query_key_value.{{kind}}", QKV, GROUPED, GROUPED),
    *named(CHECKPOINT, attention__output="self_attention.dense", attention_norm="input_layernorm"),
    *named(CHECKPOINT, feedforward_norm="post_attention_layernorm"),
    *named(f"{CHECKPOINT}.mlp", feedforward__up="dense_h_to_4h", feedforward__down="dense_4h_to_h"),
    Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
    Rule("lm_head.weight", "head.output.weight"),
)


@register("family", "bloom")
class Bloom(ClassicDecoder):
    """BLOOM: ALiBi positions and an embedding norm."""

    base: ClassVar = merged(
        ClassicDecoder.base,
        {
            "embedding": {"norm": True},
            "position": {"type": "alibi"},
            "layer": {"feedforward": {"activation": "gelu_tanh"}},
        },
    )
    heads: ClassVar = heads_of("Bloom")
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "d_model", also=("n_embed",)),
        Setting("n_layer", "num_layers", also=("num_hidden_layers",)),
        Setting("n_head", "layer.attention.num_heads", also=("num_attention_heads",)),
        Setting("hidden_dropout", "layer.dropout", 0.0),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.02),
    )
    fixed = (Fixed("apply_residual_connection_post_layernorm", (False,)),)
    rules = (Rule("word_embeddings_layernorm.{kind}", "decoder.embedding.norm.{kind}"), *BODY)
    tied: ClassVar = {"lm_head.weight": "word_embeddings.weight"}


@register("family", "falcon")
class Falcon(ClassicDecoder):
    """Falcon: parallel attention and feed-forward, few key-value heads, rotary or ALiBi positions."""

    varying = ("position", "layer.residual")
    base: ClassVar = merged(ClassicDecoder.base, {"position.type": "rotary"})
    heads: ClassVar = heads_of("Falcon")
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048),
        Setting("hidden_size", "d_model", also=("n_embed",)),
        Setting("num_hidden_layers", "num_layers", also=("n_layer",)),
        Setting("num_attention_heads", "layer.attention.num_heads", also=("n_head",)),
        Setting("ffn_hidden_size", INNER, None),
        Setting("activation", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("bias", ("layer.attention.bias", "layer.feedforward.bias"), False),
        Setting("hidden_dropout", "layer.dropout", 0.0),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.02),
    )
    rules = BODY
    # norm names in residual layouts that differ from BLOOM's
    norms: ClassVar = {
        "parallel": named(CHECKPOINT, norm="input_layernorm"),
        "parallel_two_norms": named(CHECKPOINT, attention_norm="ln_attn", feedforward_norm="ln_mlp"),
    }
    tied: ClassVar = {"lm_head.weight": "word_embeddings.weight"}
    ignored = ("h.{layer}.self_attention.rotary_emb.inv_freq",)
    rope: ClassVar[Rope] = Rope()

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        layout = blueprint.last.layers[0].residual.part.part_name
        return (*cls.norms.get(layout, ()), *super().rules_of(blueprint))

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        heads = look(model, "layer.attention.num_heads")
        model["position"] = cls.rope.read(config)
        if config.get("alibi", False):
            scale = 1 / math.sqrt(model["d_model"] // heads)
            model["position"] = {"type": "alibi", "scale": scale, "bfloat16": True}
        override(model, {"layer.residual.type": _residual(config)})
        groups = _groups(config, heads)
        if groups != heads:
            override(model, {"layer.attention.num_kv_heads": groups})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        heads = config["num_attention_heads"]
        groups = look(model, "layer.attention.num_kv_heads") or heads
        residual = look(model, "layer.residual.type")
        grouped = residual == "parallel_two_norms" or groups not in (1, heads)
        config |= {"new_decoder_architecture": grouped, "parallel_attn": residual != "pre_norm"}
        config |= {"num_kv_heads": groups, "multi_query": groups == 1}
        if grouped:
            config["num_ln_in_parallel_attn"] = 2 if residual == "parallel_two_norms" else 1
        config["alibi"] = model["position"]["type"] == "alibi"
        if not config["alibi"]:
            config["rope_parameters"] = cls.rope.write(model["position"], config)


def _residual(config: ConfigJson) -> str:
    """Return the residual layout. Raise DataError for contradictory settings."""
    grouped, parallel = config.get("new_decoder_architecture", False), config.get("parallel_attn", True)
    if grouped and not parallel:
        raise DataError("config.json: parallel_attn: false is not supported with new_decoder_architecture")
    if not grouped:
        return "parallel" if parallel else "pre_norm"
    return "parallel" if config.get("num_ln_in_parallel_attn") == 1 else "parallel_two_norms"


def _groups(config: ConfigJson, heads: int) -> int:
    """Return the number of key-value heads."""
    if config.get("new_decoder_architecture", False):
        return int(config.get("num_kv_heads") or heads)
    return 1 if config.get("multi_query", True) else heads


@register("family", "mpt")
class MPT(ClassicDecoder):
    """MPT: ALiBi positions, no biases, optional clipping of queries, keys and values."""

    base: ClassVar = merged(
        ClassicDecoder.base,
        {
            "position": {"type": "alibi", "between": "above"},
            "layer": {
                "norm": {"bias": False},
                "attention": {"bias": False},
                "feedforward": {"bias": False, "activation": "gelu"},
            },
        },
    )
    heads: ClassVar = heads_of("Mpt")
    settings = (
        *sizes("max_seq_len", "d_model", "n_layers", "n_heads"),
        Setting("resid_pdrop", "layer.dropout", 0.0),
        Setting("emb_pdrop", "embedding.dropout", 0.0),
        Setting("attn_config.attn_pdrop", "layer.attention.dropout", 0.0),
        Setting("attn_config.clip_qkv", "layer.attention.clip", None),
        Setting("attn_config.softmax_scale", "layer.attention.scale", None),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.02),
    )
    # the implementation ignores these keys, so only their defaults are accepted
    fixed = (
        Fixed("expansion_ratio", (4,)),
        Fixed("no_bias", (True,)),
        Fixed("logit_scale", (None,)),
        Fixed("embedding_fraction", (1.0,)),
        Fixed("attn_config.alibi", (True,)),
        Fixed("attn_config.alibi_bias_max", (8,)),
        Fixed("attn_config.attn_type", ("multihead_attention",)),
        Fixed("attn_config.prefix_lm", (False,)),
        Fixed("attn_config.qk_ln", (False,)),
    )
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("blocks.{layer}.attn.Wqkv.{kind}", QKV),
        *named("blocks.{layer}", attention__output="attn.out_proj", attention_norm="norm_1", feedforward_norm="norm_2"),
        *named("blocks.{layer}.ffn", feedforward__up="up_proj", feedforward__down="down_proj"),
        Rule("norm_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.weight", "head.output.weight"),
    )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        check_inner(model)
        if not config["attn_config"]["attn_pdrop"]:
            config["attn_config"]["attn_pdrop"] = 0  # the config class accepts only integers
