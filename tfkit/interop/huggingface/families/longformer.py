"""Longformer (Beltagy et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Options, Tree
from tfkit.interop.huggingface.families.bert import heads_of, renamed
from tfkit.interop.huggingface.families.roberta import Roberta
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import layers_of
from tfkit.interop.huggingface.settings import ConfigJson

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
GLOBAL = {f"attention.self.{name}_global": f"attention.{name}_global" for name in ("query", "key", "value")}


@register("family", "longformer")
class Longformer(Roberta):
    """Longformer: RoBERTa for long texts, with windowed attention and global tokens."""

    model_types = ("longformer",)
    base: ClassVar = merged(Roberta.base, {"layer.attention.type": "longformer"})
    heads: ClassVar = heads_of("Longformer")
    settings = Roberta.settings
    rules = (
        *Roberta.rules,
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in GLOBAL.items()}),
    )
    prefix = "longformer."

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["layer"]["mask"] = windows_of(config, model["num_layers"])

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        masks = [layer["mask"] or model["mask"] for layer in layers_of(model)]
        config["attention_window"] = window_sizes(masks)


def window_sizes(masks: Sequence[Sequence[Options]]) -> list[int]:
    """Return the window size of each layer. Raise DataError unless each divides the largest, for padding."""
    sizes: list[int] = [mask[0]["size"] for mask in masks]
    odd = [size for size in sizes if max(sizes) % size]
    if odd:
        raise DataError(
            f"attention_window cannot express size {odd[0]}, which does not divide the largest size, {max(sizes)}"
        )
    return sizes


def windows_of(config: ConfigJson, count: int) -> list[Tree]:
    """Return the masks of `count` layers: windows, of one size or one per layer, and global tokens."""
    sizes = config.get("attention_window", 512)
    if isinstance(sizes, list):
        if len(sizes) != count:
            raise DataError(
                f"config.json: attention_window: {len(sizes)} windows for {count} layers; set one per layer"
            )
        sizes = sizes[0] if len(set(sizes)) == 1 else {"per_layer": list(sizes)}
    return [{"type": "window", "size": sizes}, {"type": "global_tokens"}]
