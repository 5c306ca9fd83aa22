"""What the classic decoders have in common: a norm before each sublayer, a plain feed-forward four times as wide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.interop.huggingface.classes import OF_TEXTS, bring_classes, say_classes
from tfkit.interop.huggingface.family import Family, Tree, lay
from tfkit.interop.huggingface.settings import look
from tfkit.interop.huggingface.tensors import Rule

LAYER = "decoder.layers.{layer}"
QKV = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
# the queries, the key and the value of each key-value head, one group after another
GROUPED = "(group slot dim) width -> slot group dim width"
TRANSPOSED = "width out -> out width"
CLASSIFIER: Tree = {"type": "classifier", "pool": "last", "bias": False}
INNER = "layer.feedforward.d_ff"


def named(theirs: str, layout: str = "", **names: str) -> tuple[Rule, ...]:
    """Rules by the names of ours in a layer, __ for a dot; theirs begin with `theirs`."""
    return tuple(
        Rule(f"{theirs}.{name}.{{kind}}", f"{LAYER}.{ours.replace('__', '.')}.{{kind}}", layout)
        for ours, name in names.items()
    )


def heads_of(
    name: str, head: str = "ForCausalLM", classifies: bool = True, **options: Any
) -> dict[str, Mapping[str, Any]]:
    """Their classes of a decoder: one that writes, one without a head, and one that `classifies` texts."""
    writes: dict[str, Mapping[str, Any]] = {f"{name}{head}": {"head": {"type": "language_model", **options}}}
    both = {**writes, f"{name}Model": {"head": "none"}}
    return both | ({f"{name}ForSequenceClassification": {"head": CLASSIFIER}} if classifies else {})


class ClassicDecoder(Family):
    """A decoder of the years between GPT-2 and Llama."""

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
    ties: ClassVar[bool] = True  # tie_word_embeddings, where the config does not give it
    score: ClassVar[str] = "score.weight"  # their name of the output of a classifier, never with a prefix

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        rules = super().rules_of(blueprint)
        classifies = blueprint.head is not None and blueprint.head.part.part_name in OF_TEXTS
        return (Rule(cls.score, "head.output.weight"), *rules) if classifies else rules

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        return "" if name == cls.score else super().prefix_of(name, blueprint)

    @classmethod
    def to_recipe(cls, model: Tree, config: Mapping[str, Any]) -> None:
        if look(model, INNER) is None:
            lay(model, {INNER: 4 * model["d_model"]})
        if look(model, "head.type") == "language_model":
            lay(model, {"head.tied": bool(config.get("tie_word_embeddings", cls.ties))})
        bring_classes(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: Mapping[str, Any]) -> None:
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", cls.ties))
        say_classes(config, model)
