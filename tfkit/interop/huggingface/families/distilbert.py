"""DistilBERT (Sanh et al. 2019)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.classes import OF_TEXTS
from tfkit.interop.huggingface.families.bert import CLASSIFIER, MASKED_LM, BertLike, renamed, table_rules
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, look
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "transformer.layer.{layer}"
NAMES = {
    "attention.q_lin": "attention.query",
    "attention.k_lin": "attention.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "ffn.lin1": "feedforward.up",
    "ffn.lin2": "feedforward.down",
    "sa_layer_norm": "attention_norm",
    "output_layer_norm": "feedforward_norm",
}


@register("family", "distilbert")
class DistilBert(BertLike):
    """DistilBERT: BERT without token types or a pooler."""

    model_types = ("distilbert",)
    base: ClassVar = merged(BertLike.base, {"layer.norm.eps": 1e-12})
    heads: ClassVar = {
        "DistilBertForMaskedLM": {"head": MASKED_LM},
        "DistilBertForSequenceClassification": {"head": {**CLASSIFIER, "activation": "relu"}},
        "DistilBertForTokenClassification": {"head": {"type": "token_classifier"}},
        "DistilBertForQuestionAnswering": {"head": {"type": "span"}},
        "DistilBertModel": {"head": "none"},
    }
    settings = (
        *(
            row
            for row in BertLike.settings
            if row.config_key in ("vocab_size", "max_position_embeddings", "initializer_range")
        ),
        Setting("dim", "d_model"),
        Setting("n_layers", "num_layers"),
        Setting("n_heads", "layer.attention.num_heads"),
        Setting("hidden_dim", "layer.feedforward.d_ff"),
        Setting("activation", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
    )
    fixed = (Fixed("tie_word_embeddings", (True,)),)
    rules = (
        *table_rules(),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in NAMES.items()}),
    )
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed({"vocab_transform": "head.dense", "vocab_layer_norm": "head.norm"}),
            Rule("vocab_projector.bias", "head.output.bias"),
        ),
        "classifier": renamed({"pre_classifier": "head.dense", "classifier": "head.output"}),
    }
    prefix = "distilbert."
    unprefixed = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier.")
    tied: ClassVar = {"vocab_projector.weight": "embeddings.word_embeddings.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if look(model, "head.type") in OF_TEXTS:
            override(model, {"head.dropout": config.get("seq_classif_dropout", 0.2)})
        elif look(model, "head.type") == "span":
            override(model, {"head.dropout": config.get("qa_dropout", 0.1)})
