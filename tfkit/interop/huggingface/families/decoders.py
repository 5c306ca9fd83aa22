"""Base of the classic decoders: pre-norm layers with an ungated feed-forward of 4 * d_model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.classes import OF_TEXTS, read_classes, write_classes
from tfkit.interop.huggingface.family import Family, override
from tfkit.interop.huggingface.settings import ConfigJson, Setting, look
from tfkit.interop.huggingface.tensors import Rule

LAYER = "decoder.layers.{layer}"
QKV = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
# query, key and value heads interleaved by key-value group
GROUPED = "(group slot dim) width -> slot group dim width"
TRANSPOSED = "width out -> out width"
CLASSIFIER: Tree = {"type": "classifier", "pool": "last", "bias": False}
INNER = "layer.feedforward.d_ff"
# names and defaults of GPT-2
SIZES = (
    Setting("vocab_size", "vocab_size"),
    Setting("n_positions", "max_length", 1024),
    Setting("n_embd", "d_model"),
    Setting("n_layer", "num_layers"),
    Setting("n_head", "layer.attention.num_heads"),
    Setting("resid_pdrop", "layer.dropout", 0.1),
    Setting("embd_pdrop", "embedding.dropout", 0.1),
    Setting("attn_pdrop", "layer.attention.dropout", 0.1),
    Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
    Setting("initializer_range", "init.std", 0.02),
)


def named(checkpoint: str, layout: str = "", **names: str) -> tuple[Rule, ...]:
    """Return rules for names in a layer: tfkit name (__ for a dot) = checkpoint name below `checkpoint`."""
    return tuple(
        Rule(f"{checkpoint}.{name}.{{kind}}", f"{LAYER}.{own.replace('__', '.')}.{{kind}}", layout)
        for own, name in names.items()
    )


def heads_of(
    name: str, head: str = "ForCausalLM", classifies: bool = True, **options: object
) -> dict[str, ModelSection]:
    """Return the model classes of a decoder: generation, headless, and text classification if `classifies`."""
    writes: dict[str, Mapping[str, object]] = {f"{name}{head}": {"head": {"type": "language_model", **options}}}
    both = {**writes, f"{name}Model": {"head": "none"}}
    return both | ({f"{name}ForSequenceClassification": {"head": CLASSIFIER}} if classifies else {})


class ClassicDecoder(Family):
    """Base of GPT-style decoders that are neither GPT-2 nor Llama."""

    base: ClassVar = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": {"type": "learned"},
        "layer": {
            "residual": {"type": "pre_norm"},
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "normal"},
    }
    ties: ClassVar[bool] = True  # default of tie_word_embeddings
    score: ClassVar[str] = "score.weight"  # checkpoint name of a classifier's output, without a prefix

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        rules = super().rules_of(blueprint)
        classifies = blueprint.head is not None and blueprint.head.part.part_name in OF_TEXTS
        return (Rule(cls.score, "head.output.weight"), *rules) if classifies else rules

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        return "" if name == cls.score else super().prefix_of(name, blueprint)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if look(model, INNER) is None:
            override(model, {INNER: 4 * model["d_model"]})
        if look(model, "head.type") == "language_model":
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", cls.ties))})
        read_classes(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", cls.ties))
        write_classes(config, model)
