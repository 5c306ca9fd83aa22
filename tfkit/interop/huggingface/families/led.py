"""LED (Beltagy et al. 2020), the Longformer encoder-decoder."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bart import ENDS, LAYERS, ONE_TABLE, PLAIN, Bart, heads_of
from tfkit.interop.huggingface.families.bert import renamed
from tfkit.interop.huggingface.families.longformer import window_sizes, windows_of
from tfkit.interop.huggingface.family import laid, spelled
from tfkit.interop.huggingface.layer_types import spelled_layers
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

OURS, THEIRS = "encoder.layers.{layer}.attention", "encoder.layers.{layer}.self_attn"
PROJECTIONS = [f"{name}{end}" for name in ("query", "key", "value") for end in ("", "_global")]
ENCODER = renamed(
    {f"{THEIRS}.longformer_self_attn.{name}": f"{OURS}.{name}" for name in PROJECTIONS}
    | {f"{THEIRS}.output": f"{OURS}.output"}
)


@register("family", "led")
class LED(Bart):
    """LED: a BART for long texts, whose encoder has a window for all tokens and a view of everything for a few."""

    model_types = ("led",)
    base: ClassVar = laid(
        PLAIN, {"embedding": {"norm": True}, "encoder": {"layer": {"attention": {"type": "longformer"}}}}
    )
    heads: ClassVar = heads_of("LED", ["ForQuestionAnswering"], bias="frozen")
    settings = amended(
        Bart.settings,
        Setting("max_encoder_position_embeddings", "encoder.max_length", 16384),
        Setting("max_decoder_position_embeddings", "decoder.max_length", 1024),
        Setting("attention_dropout", ("layer.attention.dropout", "encoder.layer.attention.dropout"), 0.0),
        without=("max_position_embeddings", "scale_embedding"),
    )
    rules: ClassVar[tuple[Rule, ...]] = (*ENCODER, *ONE_TABLE, *ENDS, *LAYERS)
    prefix = "led."

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["encoder"]["layer"]["mask"] = windows_of(config, model["encoder"]["num_layers"])

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        encoder = model["encoder"]
        masks = [layer["mask"] or spelled(encoder, "mask") for layer in spelled_layers(encoder)]
        config["attention_window"] = window_sizes(masks)
