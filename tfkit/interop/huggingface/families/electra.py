"""Encoders with narrow token tables: ELECTRA, RoFormer, RemBERT, ALBERT (2019); DistilBERT (Sanh et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import OF_TEXTS, class_count, named_classes
from tfkit.interop.huggingface.families.bert import (
    CLASSIFIER,
    MASKED_LM,
    MASKED_LM_RULES,
    Bert,
    BertLike,
    causal_heads_of,
    heads_of,
    layer_rules,
    renamed,
    table_rules,
    tied_output,
)
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, amended, look, sizes
from tfkit.interop.huggingface.tensors import Rule, read_only

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

    heads: ClassVar = {
        "ElectraForPreTraining": {"head": {"type": "discriminator"}},
        **causal_heads_of("Electra"),
        "ElectraForSequenceClassification": {"head": {**CLASSIFIER, "activation": "gelu"}},
        "ElectraModel": {"head": "none"},
    }
    settings = amended(BertLike.settings, Setting("embedding_size", "embedding.d_embedding", 128))
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

    base: ClassVar = merged(BertLike.base, {"position": {"type": "rotary", "layout": "interleaved"}})
    heads: ClassVar = {**causal_heads_of("RoFormer"), "RoFormerModel": {"head": "none"}}
    settings = amended(
        BertLike.settings, Setting("embedding_size", "embedding.d_embedding", None), max_position_embeddings=1536
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

    heads: ClassVar = {
        **heads_of("RemBert"),
        "RemBertForMaskedLM": {"head": {"type": "masked_lm"}},
        "RemBertForCausalLM": {"type": "decoder", "head": {"type": "masked_lm"}},
    }
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


LAYER, CHECKPOINT = "encoder.layers.{layer}", "transformer.layer.{layer}"
DISTILBERT_NAMES = {
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

    base: ClassVar = merged(BertLike.base, {"layer.norm.eps": 1e-12})
    heads: ClassVar = {
        **heads_of("DistilBert"),
        "DistilBertForSequenceClassification": {"head": {**CLASSIFIER, "activation": "relu"}},
        "DistilBertModel": {"head": "none"},
    }
    settings = (
        *sizes(width="dim", depth="n_layers", heads="n_heads", longest=512),
        Setting("hidden_dim", "layer.feedforward.d_ff"),
        Setting("activation", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
        Setting("initializer_range", "init.std", 0.02),
    )
    fixed = (Fixed("tie_word_embeddings", (True,)),)
    rules = (
        *table_rules(),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in DISTILBERT_NAMES.items()}),
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


# checkpoint names of layers: several layers in one group, or several groups of one layer
INSIDE = "encoder.albert_layer_groups.0.albert_layers.{}"
APART = "encoder.albert_layer_groups.{}.albert_layers.0"
ALBERT_NAMES = {
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
    rules = (*table_rules(), *renamed({"encoder.embedding_hidden_mapping_in": "encoder.embedding.projection"}))
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
    tied: ClassVar = tied_output("predictions")
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
        for checkpoint, own in ALBERT_NAMES.items()
    }
    return renamed(names)
