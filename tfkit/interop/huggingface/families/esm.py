"""ESM (Rives et al. 2021; Lin et al. 2022): protein encoders."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import POOLER_RULES, PRE_NORM, heads_of, layer_rules, renamed, table_rules
from tfkit.interop.huggingface.families.roberta import Offset, Roberta
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, amended, look

ROPE = Rope()
INV_FREQ = "encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"


@register("family", "esm")
class Esm(Offset):
    """ESM: a pre-norm protein encoder; mask tokens have a zero embedding."""

    model_types = ("esm",)
    varying = ("position",)
    base: ClassVar = merged(Offset.base, PRE_NORM)
    heads: ClassVar = heads_of("Esm", answers=False)
    settings = amended(
        (row for row in Offset.settings if row.config_key != "hidden_act"),
        without=("type_vocab_size",),
        max_position_embeddings=1026,
    )
    fixed = (
        Fixed("is_decoder", (False,)),
        Fixed("add_cross_attention", (False,)),
        Fixed("tie_word_embeddings", (True,)),
        Fixed("is_folding_model", (False, None)),
    )
    rules = (
        *table_rules("layer_norm"),
        *layer_rules("attention.LayerNorm", "LayerNorm"),
        *renamed({"encoder.emb_layer_norm_after": "encoder.final_norm"}),
    )
    head_rules: ClassVar = {**Roberta.head_rules, "none": POOLER_RULES}
    prefix, unprefixed, tied = "esm.", Roberta.unprefixed, Roberta.tied
    ignored = ("embeddings.position_ids", INV_FREQ, INV_FREQ.replace("{layer}", "*"))  # some files have a literal *
    dropped = (
        "embeddings.position_embeddings.weight",  # unused with rotary positions, but present
        "pooler.dense.{kind}",
        "contact_head.regression.{kind}",
    )
    head_activation = "gelu"

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.activation": "gelu"})
        if config.get("position_embedding_type", "absolute") == "rotary":
            super(Offset, cls).to_recipe(model, config)
            model["position"] = ROPE.read(config)
        else:
            super().to_recipe(model, config)
        model["embedding"]["norm"] = True if config.get("emb_layer_norm_before") else None
        if config.get("token_dropout"):
            model["embedding"] |= {"type": "token_dropout", "mask_id": config.get("mask_token_id")}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        rotary = look(model, "position.type") == "rotary"
        config["position_embedding_type"] = "rotary" if rotary else "absolute"
        config["emb_layer_norm_before"] = look(model, "embedding.norm") is not None
        config["token_dropout"] = look(model, "embedding.type") == "token_dropout"
        config["mask_token_id"] = look(model, "embedding.mask_id")
        if rotary:
            super(Offset, cls).to_config(config, model)
            config |= ROPE.write(model["position"], config)
        else:
            super().to_config(config, model)
