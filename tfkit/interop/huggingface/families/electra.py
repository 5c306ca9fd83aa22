"""ELECTRA (Clark et al. 2020), RoFormer (Su et al. 2021), RemBERT (Chung et al. 2020): factorized token tables."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.classes import OF_TEXTS
from tfkit.interop.huggingface.families.bert import (
    CLASSIFIER,
    MASKED_LM,
    MASKED_LM_RULES,
    Bert,
    BertLike,
    heads_of,
    layer_rules,
    renamed,
    table_rules,
)
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule

PROJECTION = renamed({"embeddings_project": "encoder.embedding.projection"})


class Narrow(BertLike):
    """Base with token tables of width `embedding_size`, projected to d_model if the widths differ."""

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if model["embedding"].get("d_embedding") == model["d_model"]:
            del model["embedding"]["d_embedding"]

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["embedding_size"] = config["embedding_size"] or config["hidden_size"]


@register("family", "electra")
class Electra(Narrow):
    """ELECTRA: a discriminator that detects replaced tokens, and the small generator that produces them."""

    model_types = ("electra",)
    heads: ClassVar = {
        "ElectraForPreTraining": {"head": {"type": "discriminator"}},
        "ElectraForMaskedLM": {"head": MASKED_LM},
        "ElectraForSequenceClassification": {"head": {**CLASSIFIER, "activation": "gelu"}},
        "ElectraForTokenClassification": {"head": {"type": "token_classifier"}},
        "ElectraForQuestionAnswering": {"head": {"type": "span"}},
        "ElectraModel": {"head": "none"},
    }
    settings = amended(
        BertLike.settings,
        Setting("embedding_size", "embedding.d_embedding", 128),
    )
    rules = (*table_rules(), *layer_rules(), *PROJECTION)
    head_rules: ClassVar = {
        "discriminator": renamed(
            {
                "discriminator_predictions.dense": "head.dense",
                "discriminator_predictions.dense_prediction": "head.output",
            }
        ),
        "masked_lm": (
            *renamed({"generator_predictions.dense": "head.dense", "generator_predictions.LayerNorm": "head.norm"}),
            Rule("generator_lm_head.bias", "head.output.bias"),
        ),
        "classifier": renamed({"classifier.dense": "head.dense", "classifier.out_proj": "head.output"}),
    }
    prefix = "electra."
    unprefixed = ("discriminator_predictions.", "generator_predictions.", "generator_lm_head.", "classifier.")
    tied: ClassVar = {"generator_lm_head.weight": "embeddings.word_embeddings.weight"}
    head_activation = "gelu"  # activation of the masked_lm head, independent of the layers' activation

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if look(model, "head.type") == "discriminator":
            override(model, {"head.activation": look(model, "layer.feedforward.activation")})


@register("family", "roformer")
class RoFormer(Narrow):
    """RoFormer: BERT with rotary positions."""

    model_types = ("roformer",)
    base: ClassVar = merged(BertLike.base, {"position": {"type": "rotary", "layout": "interleaved"}})
    heads: ClassVar = {
        "RoFormerForMaskedLM": {"head": MASKED_LM},
        "RoFormerForSequenceClassification": {"head": CLASSIFIER},
        "RoFormerForTokenClassification": {"head": {"type": "token_classifier"}},
        "RoFormerForQuestionAnswering": {"head": {"type": "span"}},
        "RoFormerModel": {"head": "none"},
    }
    settings = amended(
        BertLike.settings,
        Setting("embedding_size", "embedding.d_embedding", None),
        max_position_embeddings=1536,
    )
    fixed = (*BertLike.fixed, Fixed("rotary_value", (False,)))
    rules = (*table_rules(), *layer_rules(), *PROJECTION)
    head_rules: ClassVar = {
        "masked_lm": MASKED_LM_RULES,
        "classifier": renamed({"classifier.dense": "head.dense", "classifier.out_proj": "head.output"}),
    }
    prefix, unprefixed, tied = "roformer.", Bert.unprefixed, Bert.tied
    ignored = ("encoder.embed_positions.weight",)  # sines and cosines

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if look(model, "head.type") in OF_TEXTS:
            override(model, {"head.activation": look(model, "layer.feedforward.activation")})


@register("family", "rembert")
class RemBert(BertLike):
    """RemBERT: multilingual BERT with a narrow input table and a separate, wide output table."""

    model_types = ("rembert",)
    heads: ClassVar = {**heads_of("RemBert"), "RemBertForMaskedLM": {"head": {"type": "masked_lm"}}}
    settings = amended(
        BertLike.settings,
        Setting("input_embedding_size", "embedding.d_embedding", 256),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    fixed = (
        *(row for row in BertLike.fixed if row.config_key != "tie_word_embeddings"),
        Fixed("tie_word_embeddings", (False,)),
    )
    rules = (
        *table_rules(),
        *layer_rules(),
        *renamed({"encoder.embedding_hidden_mapping_in": "encoder.embedding.projection"}),
    )
    head_rules: ClassVar = {
        "masked_lm": renamed(
            {
                "cls.predictions.dense": "head.dense",
                "cls.predictions.LayerNorm": "head.norm",
                "cls.predictions.decoder": "head.output",
            }
        ),
        "none": Bert.head_rules["none"],
        "classifier": Bert.head_rules["classifier"],
    }
    prefix, unprefixed = "rembert.", ("cls.", "classifier.")
    dropped = ("pooler.dense.{kind}",)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if look(model, "head.type") == "masked_lm":
            override(model, {"head.d_output": config.get("output_embedding_size", 1664)})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if look(model, "head.type") == "masked_lm":
            config["output_embedding_size"] = look(model, "head.d_output") or config["hidden_size"]
