"""BERT (Devlin et al. 2018) and encoders that differ from it in a few settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.classes import OF_TEXTS, read_classes, write_classes
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, look
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
TYPES = "embeddings.token_type_embeddings.weight"
PRE_NORM: Tree = {"layer": {"residual": "pre_norm"}, "embedding": {"norm": None}}
MASKED_LM: Tree = {"type": "masked_lm", "tied": True}
CLASSIFIER: Tree = {"type": "classifier", "activation": "tanh"}
POOLER: Tree = {"head": "none", "heads": {"pooler": {"type": "pooled", "activation": "tanh"}}}
NEXT_SENTENCE: Tree = {"heads": {"next_sentence": {**CLASSIFIER, "num_classes": 2}}}


def heads_of(name: str, answers: bool = True) -> dict[str, ModelSection]:
    """Return the classes of an encoder: masked LM, classification, headless, and question answering if `answers`."""
    heads: dict[str, Mapping[str, object]] = {
        f"{name}ForMaskedLM": {"head": MASKED_LM},
        f"{name}ForSequenceClassification": {"head": CLASSIFIER},
        f"{name}ForTokenClassification": {"head": {"type": "token_classifier"}},
        f"{name}Model": POOLER,
    }
    return heads | ({f"{name}ForQuestionAnswering": {"head": {"type": "span"}}} if answers else {})


def table_rules(norm: str = "LayerNorm") -> tuple[Rule, ...]:
    """Return the rules for the token, position and token type tables and their norm."""
    return (
        Rule("embeddings.word_embeddings.weight", "encoder.embedding.tokens.weight"),
        Rule("embeddings.position_embeddings.weight", "encoder.position.0.table.weight"),
        Rule(TYPES, "encoder.embedding.segments.weight"),
        Rule(f"embeddings.{norm}.{{kind}}", "encoder.embedding.norm.{kind}"),
    )


def layer_rules(
    attention: str = "attention.output.LayerNorm", feedforward: str = "output.LayerNorm"
) -> tuple[Rule, ...]:
    """Return the rules for a layer's projections and its two norms, named by the arguments."""
    names = {
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.output",
        "intermediate.dense": "feedforward.up",
        "output.dense": "feedforward.down",
        attention: "attention_norm",
        feedforward: "feedforward_norm",
    }
    return renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in names.items()})


def renamed(names: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return rules that rename weights and biases. `names`: checkpoint name -> tfkit name."""
    return tuple(Rule(f"{checkpoint}.{{kind}}", f"{own}.{{kind}}") for checkpoint, own in names.items())


MASKED_LM_RULES = (
    *renamed({"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}),
    Rule("cls.predictions.bias", "head.output.bias"),
    *renamed({"pooler.dense": "heads.next_sentence.dense", "cls.seq_relationship": "heads.next_sentence.output"}),
)
POOLER_RULES = renamed({"pooler.dense": "heads.pooler.dense"})
CLASSIFIER_RULES = renamed({"pooler.dense": "head.dense", "classifier": "head.output"})
# output layers per token, which have the same names in all families, without a prefix
OF_TOKENS = {"token_classifier": "classifier.", "span": "qa_outputs."}


class BertLike(Family):
    """Base of BERT and similar encoders, independent of tensor names."""

    base: ClassVar[ModelSection] = {
        "type": "encoder",
        "embedding": {"type": "tokens", "norm": True},
        "position": {"type": "learned"},
        "layer": {
            "residual": "post_norm",
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "normal"},
    }
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 512),
        Setting("hidden_size", "d_model"),
        Setting("num_hidden_layers", "num_layers"),
        Setting("num_attention_heads", "layer.attention.num_heads"),
        Setting("intermediate_size", "layer.feedforward.d_ff"),
        Setting("hidden_act", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("hidden_dropout_prob", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_probs_dropout_prob", "layer.attention.dropout", 0.1),
        Setting("type_vocab_size", "embedding.segments", 2),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-12),
        Setting("initializer_range", "init.std", 0.02),
    )
    fixed: ClassVar[tuple[Fixed, ...]] = (
        Fixed("is_decoder", (False,)),
        Fixed("add_cross_attention", (False,)),
        Fixed("position_embedding_type", ("absolute",)),
        Fixed("tie_word_embeddings", (True,)),
    )
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "embeddings.token_type_ids")
    untyped: ClassVar[bool] = False  # True if the implementation works without a token type table
    head_activation: ClassVar[str | None] = None  # activation of the masked_lm head; None: same as in the feed-forward

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Return the rules of a model, starting with the output layers per token."""
        head = "none" if blueprint.head is None else blueprint.head.part.part_name
        output = OF_TOKENS.get(head)
        rules = super().rules_of(blueprint)
        return rules if output is None else (*renamed({output.rstrip("."): "head.output"}), *rules)

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        return "" if name.startswith(tuple(OF_TOKENS.values())) else super().prefix_of(name, blueprint)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        read_classes(model, config)
        if look(model, "head.type") == "masked_lm":
            override(model, {"head.activation": cls.head_activation or look(model, "layer.feedforward.activation")})
        if look(model, "head.type") in (*OF_TEXTS, "token_classifier"):
            rates = (config.get(key) for key in ("classifier_dropout", "classifier_dropout_prob"))
            override(
                model, {"head.dropout": next((rate for rate in rates if rate is not None), model["layer"]["dropout"])}
            )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        write_classes(config, model)
        if config.get("type_vocab_size") == 0 and not cls.untyped:
            config["type_vocab_size"] = 1  # all zeros

    @classmethod
    def as_read(cls, model: ModelSection) -> ModelSection:
        return merged(model, {"embedding.segments": 1}) if cls._adds_types(model["embedding"]["segments"]) else model

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        """Return a zero token type table if the model has none, since the implementation requires one."""
        table: Any = blueprint.last.embedding
        if not cls._adds_types(table.segments):
            return {}
        return {TYPES: torch.zeros(1, table.d_embedding or blueprint.last.d_model)}

    @classmethod
    def _adds_types(cls, segments: int) -> bool:
        has_types = any(row.config_key == "type_vocab_size" for row in cls.settings)
        return has_types and not segments and not cls.untyped


@register("family", "bert")
class Bert(BertLike):
    """BERT: a post-norm encoder with an embedding norm and a dense layer before the head."""

    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    heads: ClassVar[Mapping[str, ModelSection]] = {
        **heads_of("Bert"),
        "BertForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE},
    }
    rules: ClassVar[tuple[Rule, ...]] = (*table_rules(), *layer_rules())
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {
        "masked_lm": MASKED_LM_RULES,
        "none": POOLER_RULES,
        "classifier": CLASSIFIER_RULES,
    }
    prefix, unprefixed = "bert.", ("cls.", "classifier.")
    tied: ClassVar = {
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    dropped: ClassVar[tuple[str, ...]] = ("pooler.dense.{kind}", "cls.seq_relationship.{kind}")


@register("family", "ernie")
class Ernie(Bert):
    """ERNIE: BERT trained to predict whole phrases (Sun et al. 2019); task types are not supported."""

    model_types = ("ernie",)
    heads: ClassVar = {**heads_of("Ernie"), "ErnieForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE}}
    fixed = (*Bert.fixed, Fixed("use_task_id", (False,)))
    prefix = "ernie."
