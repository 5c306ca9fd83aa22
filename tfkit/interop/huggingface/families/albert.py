"""ALBERT (Lan et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import class_count, named_classes
from tfkit.interop.huggingface.families.bert import MASKED_LM, Encoder, heads_of, renamed, table_rules
from tfkit.interop.huggingface.family import Tree, laid
from tfkit.interop.huggingface.settings import ACTIVATIONS, Fixed, Setting, amended, look, put
from tfkit.interop.huggingface.tensors import Rule

GROUPS = "encoder.albert_layer_groups"
NAMES = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.dense": "attention.output",
    "attention.LayerNorm": "attention_norm",
    "ffn": "feedforward.up",
    "ffn_output": "feedforward.down",
    "full_layer_layer_norm": "feedforward_norm",
}
ORDER = "heads.sentence_order"
SENTENCE_ORDER: Tree = {"heads": {"sentence_order": {"type": "classifier", "activation": "tanh"}}}
GROUP = "group"  # the kind of all layers, where there are several groups of them


@register("family", "albert")
class Albert(Encoder):
    """ALBERT: a BERT whose layers are one, with narrow tables projected to the width of the layers."""

    model_types = ("albert",)
    base: ClassVar = laid(Encoder.base, {"layer": {"shared": True}})
    heads: ClassVar = {**heads_of("Albert"), "AlbertForPreTraining": {"head": MASKED_LM, **SENTENCE_ORDER}}
    settings = amended(
        Encoder.settings,
        Setting("vocab_size", "vocab_size", 30000),
        Setting("embedding_size", "embedding.d_embedding", 128),
        Setting("hidden_size", "d_model", 4096),
        Setting("num_attention_heads", "layer.attention.num_heads", 64),
        Setting("intermediate_size", "layer.feedforward.d_ff", 16384),
        Setting("hidden_act", "layer.feedforward.activation", "gelu_new", ACTIVATIONS),
        Setting("hidden_dropout_prob", ("layer.dropout", "embedding.dropout"), 0.0),
        Setting("attention_probs_dropout_prob", "layer.attention.dropout", 0.0),
    )
    fixed = (Fixed("tie_word_embeddings", (True,)), Fixed("inner_group_num", (1,)))
    rules = (
        *table_rules(),
        *renamed({"encoder.embedding_hidden_mapping_in": "encoder.embedding.projection"}),
    )
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed({"predictions.dense": "head.dense", "predictions.LayerNorm": "head.norm"}),
            *renamed({"pooler": f"{ORDER}.dense", "sop_classifier.classifier": f"{ORDER}.output"}),
            Rule("predictions.bias", "head.output.bias"),
        ),
        "none": renamed({"pooler": "heads.pooler.dense"}),
        "classifier": renamed({"pooler": "head.dense", "classifier": "head.output"}),
    }
    prefix, unprefixed = "albert.", ("predictions.", "sop_classifier.", "classifier.")
    tied: ClassVar = {
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    dropped = ("pooler.{kind}", "sop_classifier.classifier.{kind}")

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Their groups are numbered; with us the first layer of a group has its weights."""
        names = {
            f"{GROUPS}.{group}.albert_layers.0.{theirs}": f"encoder.layers.{layer}.{ours}"
            for group, layer in enumerate(_first_layers(blueprint))
            for theirs, ours in NAMES.items()
        }
        return (*super().rules_of(blueprint), *renamed(names))

    @classmethod
    def to_recipe(cls, model: Tree, config: Mapping[str, Any]) -> None:
        super().to_recipe(model, config)
        if "sentence_order" in model.get("heads", {}):
            put(model, "heads.sentence_order.num_classes", class_count(config))
        groups, count = int(config.get("num_hidden_groups", 1)), model["num_layers"]
        if groups > 1:
            numbers = [int(layer / (count / groups)) for layer in range(count)]
            model["layers"] = {GROUP: {}}
            model["pattern"] = [f"{GROUP}*{numbers.count(group)}" for group in dict.fromkeys(numbers)]

    @classmethod
    def to_config(cls, config: Tree, model: Mapping[str, Any]) -> None:
        super().to_config(config, model)
        config["num_hidden_groups"] = len(model.get("pattern", [GROUP]))
        order = look(model, "heads.sentence_order.num_classes")
        if order is not None:
            config |= named_classes([f"LABEL_{number}" for number in range(order)])


def _first_layers(blueprint: Blueprint) -> list[int]:
    """The first layer of each pattern entry."""
    entries = blueprint.last.entries
    return [entries.index(entry) for entry in dict.fromkeys(entries)]
