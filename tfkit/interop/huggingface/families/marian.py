"""Translators with fixed positions: Marian (Junczys-Dowmunt et al. 2018), M2M-100 (Fan et al. 2020), FSMT (2019)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bart import (
    ENDS,
    LAYERS,
    ONE_TABLE,
    PLAIN,
    PRE_NORM,
    SINES,
    TWO_TABLES,
    Bart,
    heads_of,
)
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

FAIRSEQ = {"type": "sinusoidal", "layout": "halves", "spacing": "endpoints", "skip_padding": True}


@register("family", "marian")
class Marian(Bart):
    """Marian: the original Transformer with a constant output bias and, optionally, separate vocabularies."""

    model_types = ("marian",)
    base: ClassVar = merged(PLAIN, SINES)
    heads: ClassVar = {
        "MarianMTModel": {"head": {"type": "language_model", "bias": "frozen"}},
        "MarianModel": {"head": "none"},
    }
    settings = Bart.settings
    rules = (*TWO_TABLES, *ONE_TABLE, *ENDS, *LAYERS)
    tied: ClassVar = {**Bart.tied, "lm_head.weight": "decoder.embed_tokens.weight"}
    ignored = (*Bart.ignored, "{side}.embed_positions.weight")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if not config.get("share_encoder_decoder_embeddings", True):
            del model["embedding"]["shared"]
            override(model, {"decoder.vocab_size": config.get("decoder_vocab_size") or model["vocab_size"]})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        shared = model["decoder"]["embedding"]["shared"]
        config |= {"share_encoder_decoder_embeddings": shared, "vocab_size": model["encoder"]["vocab_size"]}
        config["decoder_vocab_size"] = model["decoder"]["vocab_size"]


@register("family", "m2m_100")
class M2M100(Bart):
    """M2M-100 and NLLB: pre-norm, sinusoidal positions that skip padding."""

    model_types = ("m2m_100",)
    base: ClassVar = merged(PLAIN, {**PRE_NORM, "position": FAIRSEQ})
    heads: ClassVar = heads_of("M2M100")
    settings = amended(Bart.settings, activation_function="relu", attention_dropout=0.1, scale_embedding=True)
    ignored = (*Bart.ignored, "{side}.embed_positions.weights", "{side}.embed_positions.weight")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        pad = config.get("pad_token_id", 1)
        override(model, {"position.offset": pad + 1})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["pad_token_id"] = model["decoder"]["position"]["offset"] - 1


@register("family", "fsmt")
class FSMT(M2M100):
    """FSMT: fairseq's original Transformer, with two vocabularies and an untied output."""

    model_types = ("fsmt",)
    base: ClassVar = merged(PLAIN, {"embedding": {"shared": False}, "position": FAIRSEQ})
    heads: ClassVar = {"FSMTForConditionalGeneration": {"head": {"type": "language_model"}}}
    settings = amended(
        M2M100.settings,
        Setting("src_vocab_size", "encoder.vocab_size"),
        Setting("tgt_vocab_size", "decoder.vocab_size"),
        without=("vocab_size",),
        attention_dropout=0.0,
    )
    rules = (
        *TWO_TABLES,
        Rule("decoder.output_projection.weight", "head.output.weight"),
        *(rule for rule in ENDS if rule.checkpoint != "lm_head.weight"),
        *LAYERS,
    )
    unprefixed = ()
    tied: ClassVar = dict.fromkeys(
        ("decoder.output_projection.weight", "encoder.embed_tokens.weight"), "decoder.embed_tokens.weight"
    )
    ties = False
