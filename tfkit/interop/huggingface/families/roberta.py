"""RoBERTa (Liu et al. 2019) and its relatives: position ids skip padding and start after the padding row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import (
    POOLER_RULES,
    PRE_NORM,
    BertLike,
    heads_of,
    layer_rules,
    renamed,
    table_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import ConfigJson, amended
from tfkit.interop.huggingface.tensors import Rule

FINAL_NORM = "encoder.final_norm"


class Offset(BertLike):
    """Base whose learned positions start after the padding row; max_position_embeddings includes the skipped rows."""

    base: ClassVar[ModelSection] = merged(BertLike.base, {"position.skip_padding": True})

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        offset = int(config.get("pad_token_id", 1)) + 1
        if model["max_length"] <= offset:
            raise DataError(
                f"config.json: max_position_embeddings {model['max_length']} leaves no room after row {offset}, "
                f"the first position with pad_token_id {offset - 1}"
            )
        cls.positions(model)["offset"] = offset
        model["max_length"] -= offset

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        offset = int(cls.positions(model)["offset"])
        config["max_position_embeddings"] += offset
        config["pad_token_id"] = offset - 1

    @classmethod
    def positions(cls, model: ModelSection) -> Tree:
        """Return the learned part among the model's position parts."""
        parts = model["position"] if isinstance(model["position"], list) else [model["position"]]
        learned: Tree = next(part for part in parts if part["type"] == "learned")
        return learned


@register("family", "roberta")
class Roberta(Offset):
    """RoBERTa: byte-level BERT without next-sentence prediction; position ids skip padding."""

    model_types: ClassVar[tuple[str, ...]] = ("roberta",)
    heads: ClassVar[Mapping[str, ModelSection]] = heads_of("Roberta")
    settings = BertLike.settings
    rules = (*table_rules(), *layer_rules())
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed({"lm_head.dense": "head.dense", "lm_head.layer_norm": "head.norm"}),
            Rule("lm_head.bias", "head.output.bias"),
        ),
        "none": POOLER_RULES,
        "classifier": renamed({"classifier.dense": "head.dense", "classifier.out_proj": "head.output"}),
    }
    prefix, unprefixed = "roberta.", ("lm_head.", "classifier.")
    tied: ClassVar = {
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }
    dropped = ("pooler.dense.{kind}",)
    head_activation = "gelu"  # activation of the masked_lm head, independent of the layers' activation


@register("family", "xlm_roberta")
class XLMRoberta(Roberta):
    """XLM-RoBERTa: multilingual RoBERTa (Conneau et al. 2019)."""

    model_types = ("xlm-roberta",)
    heads: ClassVar = heads_of("XLMRoberta")
    settings = Roberta.settings


@register("family", "camembert")
class Camembert(XLMRoberta):
    """CamemBERT: French RoBERTa (Martin et al. 2019)."""

    model_types = ("camembert",)
    heads: ClassVar = heads_of("Camembert")


@register("family", "data2vec_text")
class Data2VecText(XLMRoberta):
    """data2vec for text: RoBERTa trained to predict its own hidden states (Baevski et al. 2022)."""

    model_types = ("data2vec-text",)
    heads: ClassVar = heads_of("Data2VecText")
    prefix = "data2vec_text."


@register("family", "roberta_prelayernorm")
class RobertaPreLayerNorm(Roberta):
    """Pre-norm RoBERTa with an embedding norm (Ott et al. 2019, fairseq)."""

    model_types = ("roberta-prelayernorm",)
    base: ClassVar = merged(Roberta.base, {"layer": PRE_NORM["layer"]})
    heads: ClassVar = heads_of("RobertaPreLayerNorm")
    rules = (
        *table_rules(),
        *layer_rules("attention.LayerNorm", "intermediate.LayerNorm"),
        *renamed({"LayerNorm": FINAL_NORM}),
    )
    prefix = "roberta_prelayernorm."


@register("family", "xlm_roberta_xl")
class XLMRobertaXL(Roberta):
    """XLM-RoBERTa-XL: larger, pre-norm (Goyal et al. 2021)."""

    model_types = ("xlm-roberta-xl",)
    base: ClassVar = merged(Roberta.base, PRE_NORM)
    heads: ClassVar = heads_of("XLMRobertaXL")
    settings = amended(
        Roberta.settings,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    rules = (
        *table_rules()[:3],
        *layer_rules("attention.self_attn_layer_norm", "LayerNorm"),
        *renamed({"encoder.LayerNorm": FINAL_NORM}),
    )
