"""LED (Beltagy et al. 2020), the Longformer encoder-decoder."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bart import ENDS, LAYERS, ONE_TABLE, PLAIN, Bart, heads_of
from tfkit.interop.huggingface.families.bert import renamed
from tfkit.interop.huggingface.families.longformer import window_sizes, windows_of
from tfkit.interop.huggingface.family import merged, value_of
from tfkit.interop.huggingface.layer_types import layers_of
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

OWN, CHECKPOINT = "encoder.layers.{layer}.attention", "encoder.layers.{layer}.self_attn"
PROJECTIONS = [f"{name}{end}" for name in ("query", "key", "value") for end in ("", "_global")]
ENCODER = renamed(
    {f"{CHECKPOINT}.longformer_self_attn.{name}": f"{OWN}.{name}" for name in PROJECTIONS}
    | {f"{CHECKPOINT}.output": f"{OWN}.output"}
)


@register("family", "led")
class LED(Bart):
    """LED: BART for long texts, with windowed attention and global tokens in the encoder."""

    model_types = ("led",)
    base: ClassVar = merged(
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
        masks = [layer["mask"] or value_of(encoder, "mask") for layer in layers_of(encoder)]
        config["attention_window"] = window_sizes(masks)
