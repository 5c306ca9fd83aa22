"""Granite (IBM 2024) and HyperCLOVA X (NAVER 2025): Llama with multipliers."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.llama import NORMS, Llama, head_width, heads_of, norm_rules
from tfkit.interop.huggingface.family import override, value_of
from tfkit.interop.huggingface.settings import ConfigJson, Factor, Power, Setting, amended

MULTIPLIERS = (
    Factor("embedding_multiplier", "embedding.scale", 1.0),
    Factor("residual_multiplier", "layer.residual.branch_scale", 1.0),
    Setting("attention_multiplier", "layer.attention.scale", 1.0),
)


def write_scale(config: Tree, model: ModelSection) -> None:
    """Write the attention scale, which a recipe may omit if it is the default for the head width.

    Raises DataError if the head has no logit scale, since the implementation always divides the logits by a scale.
    """
    if config.get("logits_scaling", 1) is None:
        raise DataError("config.json cannot express logits without a scale")
    if config["attention_multiplier"] is None:
        config["attention_multiplier"] = head_width(model) ** -0.5


@register("family", "granite")
class Granite(Llama):
    """Granite: Llama with factors on embeddings, scores, sublayer outputs and logits."""

    model_types = ("granite",)
    heads = heads_of("Granite")
    settings = amended(Llama.settings, *MULTIPLIERS, without=("head_dim",))
    head_settings: ClassVar[tuple[Setting, ...]] = (Power("logits_scaling", "head.scale", 1.0, power=-1.0),)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        write_scale(config, model)


@register("family", "hyperclovax")
class HyperClovaX(Granite):
    """HyperCLOVA X: Granite with norms before and after each sublayer."""

    model_types = ("hyperclovax",)
    varying = ("layer.residual",)
    heads = heads_of("HyperCLOVAX")
    settings = amended(Llama.settings, *MULTIPLIERS, Setting("attention_multiplier", "layer.attention.scale", None))
    head_settings = (Factor("logits_scaling", "head.scale", 1.0),)
    rules = (
        *(rule for rule in Llama.rules if rule not in NORMS),
        *norm_rules(
            attention_norm="input_layernorm",
            attention_output_norm="post_norm1",
            feedforward_norm="post_attention_layernorm",
            feedforward_output_norm="post_norm2",
        ),
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        layout = "sandwich" if config.get("use_post_norm", True) else "pre_norm"
        override(model, {"layer.residual": {**model["layer"]["residual"], "type": layout}})  # keeps branch_scale
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["use_post_norm"] = value_of(model, "layer.residual.type") == "sandwich"
