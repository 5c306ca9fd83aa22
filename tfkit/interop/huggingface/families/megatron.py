"""Megatron-BERT (Shoeybi et al. 2019), and BERT-Generation (Rothe et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import (
    MASKED_LM,
    NEXT_SENTENCE,
    PRE_NORM,
    Bert,
    BertLike,
    heads_of,
    layer_rules,
    renamed,
    table_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import ConfigJson, amended
from tfkit.interop.huggingface.tensors import Rule


@register("family", "megatron_bert")
class MegatronBert(Bert):
    """Megatron-BERT: pre-norm BERT without an embedding norm (Shoeybi et al. 2019)."""

    model_types = ("megatron-bert",)
    base: ClassVar = merged(Bert.base, PRE_NORM)
    heads: ClassVar = {**heads_of("MegatronBert"), "MegatronBertForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE}}
    rules = (*table_rules()[:3], *layer_rules("attention.ln", "ln"), *renamed({"encoder.ln": "encoder.final_norm"}))


@register("family", "bert_generation")
class BertGeneration(BertLike):
    """BERT-Generation: causal BERT without token types or a dense layer in the head (Rothe et al. 2019)."""

    model_types = ("bert-generation",)
    heads: ClassVar = {
        "BertGenerationDecoder": {"type": "decoder", "head": {"type": "language_model", "tied": True, "bias": True}},
        "BertGenerationEncoder": {"head": "none"},
    }
    settings = amended(MegatronBert.settings, without=("type_vocab_size",))
    fixed = tuple(row for row in BertLike.fixed if row.config_key != "is_decoder")
    rules = tuple(
        replace(rule, own=str(rule.own).replace("encoder.", "{side}.", 1)) for rule in (*table_rules(), *layer_rules())
    )
    head_rules: ClassVar = {"language_model": (Rule("lm_head.bias", "head.output.bias"),)}
    prefix, unprefixed = "bert.", ("lm_head.",)
    tied: ClassVar = {
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if config.get("is_decoder", False):
            model["type"] = "decoder"
        elif model["head"] is not None:
            raise DataError("config.json: is_decoder: a bidirectional BertGenerationDecoder is not supported")

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["is_decoder"] = model["type"] == "decoder"
