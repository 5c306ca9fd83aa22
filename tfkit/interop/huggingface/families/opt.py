"""Decoders from fairseq: OPT (Zhang et al. 2022), XGLM (Lin et al. 2021), BioGPT (Luo et al. 2022)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.decoders import INNER, ClassicDecoder, heads_of, named
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, Switch, look
from tfkit.interop.huggingface.tensors import Rule

ATTENTION = {"attention__query": "q_proj", "attention__key": "k_proj", "attention__value": "v_proj"}


def body_rules(side: str = "") -> tuple[Rule, ...]:
    """Return the rules for tables and layers; `side` prefixes the checkpoint names."""
    layer = f"{side}layers.{{layer}}"
    return (
        Rule(f"{side}embed_tokens.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{side}embed_positions.weight", "decoder.position.0.table.weight"),
        *named(f"{layer}.self_attn", **ATTENTION, attention__output="out_proj"),
        *named(layer, attention_norm="self_attn_layer_norm", feedforward_norm="final_layer_norm"),
        *named(layer, feedforward__up="fc1", feedforward__down="fc2"),
    )


END = Rule("layer_norm.{kind}", "decoder.final_norm.{kind}")


@register("family", "opt")
class OPT(ClassicDecoder):
    """OPT: learned positions that skip padding; OPT-350M is post-norm with a narrow token table."""

    model_types = ("opt",)
    varying = ("layer.residual",)
    base: ClassVar = merged(ClassicDecoder.base, {"position": {"offset": 2, "skip_padding": True}})
    heads: ClassVar = heads_of("OPT")
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048),
        Setting("hidden_size", "d_model"),
        Setting("num_hidden_layers", "num_layers"),
        Setting("num_attention_heads", "layer.attention.num_heads"),
        Setting("ffn_dim", INNER),
        Setting("activation_function", "layer.feedforward.activation", "relu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("enable_bias", ("layer.attention.bias", "layer.feedforward.bias"), True),
        Setting("layer_norm_elementwise_affine", "layer.norm.affine", True),
        Setting("init_std", "init.std", 0.02),
    )
    rules = (
        *body_rules("decoder."),
        Rule("decoder.project_in.weight", "decoder.embedding.projection.weight"),
        Rule("decoder.final_layer_norm.{kind}", "decoder.final_norm.{kind}"),
        Rule("decoder.project_out.weight", "head.projection.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix, unprefixed = "model.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "decoder.embed_tokens.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        narrow = config.get("word_embed_proj_dim") or model["d_model"]
        if narrow != model["d_model"]:
            if not look(model, "head.tied"):
                raise DataError("config.json: word_embed_proj_dim is supported only with a tied head")
            model["embedding"] |= {"d_embedding": narrow, "project_tokens": True, "projection_bias": False}
        before, bare = config.get("do_layer_norm_before", True), config.get("_remove_final_layer_norm", False)
        if not before:
            override(model, {"layer.residual.type": "post_norm"})
        elif bare:
            model["final_norm"] = "none"

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        before = look(model, "layer.residual.type") == "pre_norm"
        config["do_layer_norm_before"] = before
        config["_remove_final_layer_norm"] = before and model["final_norm"] is None
        config["word_embed_proj_dim"] = model["embedding"]["d_embedding"] or model["d_model"]


@register("family", "xglm")
class XGLM(ClassicDecoder):
    """XGLM: sinusoidal positions that start at 2, embeddings scaled by sqrt(d_model)."""

    model_types = ("xglm",)
    base: ClassVar = merged(
        ClassicDecoder.base,
        {"position": {"type": "sinusoidal", "layout": "halves", "spacing": "endpoints", "offset": 2}},
    )
    heads: ClassVar = heads_of("XGLM", classifies=False)
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048),
        Setting("d_model", "d_model"),
        Setting("num_layers", "num_layers"),
        Setting("attention_heads", "layer.attention.num_heads"),
        Setting("ffn_dim", INNER),
        Setting("activation_function", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
        Setting("activation_dropout", "layer.feedforward.dropout", 0.0),
        Setting("init_std", "init.std", 0.02),
        Switch("scale_embedding", "embedding.scale", True, on="sqrt_d_model"),
    )
    fixed = (Fixed("add_cross_attention", (False,)),)
    rules = (*body_rules(), END, Rule("lm_head.weight", "head.output.weight"))
    prefix, unprefixed = "model.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "embed_tokens.weight"}
    ignored = ("embed_positions.weights", "embed_positions.weight")


@register("family", "biogpt")
class BioGPT(ClassicDecoder):
    """BioGPT: learned positions that skip padding, embeddings scaled by sqrt(d_model)."""

    model_types = ("biogpt",)
    base: ClassVar = merged(ClassicDecoder.base, {"position": {"offset": 2, "skip_padding": True}})
    heads: ClassVar = heads_of("BioGpt")
    # the implementation ignores layer_norm_eps
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 1024),
        Setting("hidden_size", "d_model"),
        Setting("num_hidden_layers", "num_layers"),
        Setting("num_attention_heads", "layer.attention.num_heads"),
        Setting("intermediate_size", INNER),
        Setting("hidden_act", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("hidden_dropout_prob", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_probs_dropout_prob", "layer.attention.dropout", 0.1),
        Setting("activation_dropout", "layer.feedforward.dropout", 0.0),
        Setting("initializer_range", "init.std", 0.02),
        Switch("scale_embedding", "embedding.scale", True, on="sqrt_d_model"),
    )
    rules = (*body_rules(), END, Rule("output_projection.weight", "head.output.weight"))
    prefix, unprefixed = "biogpt.", ("output_projection.",)
    tied: ClassVar = {"output_projection.weight": "embed_tokens.weight"}
