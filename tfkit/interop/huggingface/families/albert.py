"""ALBERT (Lan et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.classes import class_count, named_classes
from tfkit.interop.huggingface.families.bert import MASKED_LM, BertLike, heads_of, renamed, table_rules
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule, read_only

# checkpoint names of layers: several layers in one group, or several groups of one layer
INSIDE = "encoder.albert_layer_groups.0.albert_layers.{}"
APART = "encoder.albert_layer_groups.{}.albert_layers.0"
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
GROUP = "group"  # prefix of layer kinds in checkpoints with several groups


@register("family", "albert")
class Albert(BertLike):
    """ALBERT: a BERT with shared layer weights and a narrow token table projected to d_model."""

    model_types = ("albert",)
    base: ClassVar = merged(BertLike.base, {"layer.shared": True})
    heads: ClassVar = {**heads_of("Albert"), "AlbertForPreTraining": {"head": MASKED_LM, **SENTENCE_ORDER}}
    settings = amended(
        BertLike.settings,
        Setting("embedding_size", "embedding.d_embedding", 128),
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    fixed = (Fixed("tie_word_embeddings", (True,)),)
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
        """Return rules with group and layer numbers; tfkit stores shared weights in the first layer that uses them."""
        entries = blueprint.last.entries
        first = [entries.index(entry) for entry in dict.fromkeys(entries)]
        inside, apart = (_layer_rules(place, first) for place in (INSIDE, APART))
        if list(entries) != sorted(entries):  # one group whose layers repeat
            return (*super().rules_of(blueprint), *inside)
        return (*super().rules_of(blueprint), *apart, *read_only(*inside))  # otherwise, files may use either naming

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if "sentence_order" in model.get("heads", {}):
            override(model, {"heads.sentence_order.num_classes": class_count(config)})
        groups, inner = (int(config.get(key, 1)) for key in ("num_hidden_groups", "inner_group_num"))
        if groups > 1 and inner > 1:
            raise DataError(
                f"config.json: inner_group_num: {inner} layers in each of {groups} groups are not supported; "
                "several inner layers require num_hidden_groups 1"
            )
        count = model["num_layers"]
        if groups > 1:
            numbers = [int(layer / (count / groups)) for layer in range(count)]
            model["layers"] = {GROUP: {}}
            model["pattern"] = [f"{GROUP}*{numbers.count(group)}" for group in dict.fromkeys(numbers)]
        elif inner > 1:
            model |= {"layers": {GROUP: {}}, "pattern": [GROUP] * inner, "num_layers": count * inner}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        pattern, count = model.get("pattern", [GROUP]), model["num_layers"]
        inside = 1 < len(pattern) < count and all(entry.endswith("*1") for entry in pattern)  # repeated
        config["num_hidden_groups"] = 1 if inside else len(pattern)
        config["inner_group_num"] = len(pattern) if inside else 1
        if inside:
            config["num_hidden_layers"] = count // len(pattern)
        order = look(model, "heads.sentence_order.num_classes")
        if order is not None:
            config |= named_classes([f"LABEL_{number}" for number in range(order)])


def _layer_rules(place: str, layers: Sequence[int]) -> tuple[Rule, ...]:
    """Return the rules for the given tfkit layers, with checkpoint names from the template `place`."""
    names = {
        f"{place.format(number)}.{checkpoint}": f"encoder.layers.{layer}.{own}"
        for number, layer in enumerate(layers)
        for checkpoint, own in NAMES.items()
    }
    return renamed(names)
