"""T5Gemma (Zhang et al. 2025): an encoder-decoder of Gemma 2 layers."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.gemma import Gemma2
from tfkit.interop.huggingface.family import Family, override
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.tensors import Rule

OWN, CHECKPOINT = "{side}.layers.{layer}", "{side}.layers.{layer}"
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
SUBLAYERS = {"self_attn": "attention", "cross_attn": "cross_attention", "feedforward": "feedforward"}
DROPOUTS = ("layer.dropout", "layer.feedforward.dropout", "embedding.dropout", "final_dropout")


@register("family", "t5gemma")
class T5Gemma(Family):
    """T5Gemma: Gemma 2's layers on both sides, with cross-attention in the decoder."""

    model_types = ("t5gemma",)
    base = {"type": "encoder_decoder", "encoder": {}, "decoder": {}, "init": {"type": "normal"}}
    heads: ClassVar[Mapping[str, ModelSection]] = {
        "T5GemmaForConditionalGeneration": {"head": {"type": "language_model"}}
    }
    rules = (
        Rule("{side}.embed_tokens.weight", "{side}.embedding.tokens.weight"),
        *(
            Rule(f"{CHECKPOINT}.{checkpoint}.{name}.{{kind}}", f"{OWN}.{own}.{projection}.{{kind}}")
            for checkpoint, own in list(SUBLAYERS.items())[:2]
            for name, projection in PROJECTIONS.items()
        ),
        *(
            Rule(f"{CHECKPOINT}.mlp.{name}_proj.{{kind}}", f"{OWN}.feedforward.{name}.{{kind}}")
            for name in ("gate", "up", "down")
        ),
        *(
            Rule(f"{CHECKPOINT}.{when}_{checkpoint}_layernorm.weight", f"{OWN}.{own}_{norm}.weight")
            for checkpoint, own in SUBLAYERS.items()
            for when, norm in (("pre", "norm"), ("post", "output_norm"))
        ),
        Rule("{side}.norm.weight", "{side}.final_norm.weight"),
        Rule("lm_head.out_proj.weight", "head.output.weight"),
    )
    prefix, unprefixed = "model.", ("lm_head.",)
    tied = {"lm_head.out_proj.weight": "decoder.embed_tokens.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        for side in ("encoder", "decoder"):
            if not isinstance(config.get(side), Mapping):
                raise DataError(f"config.json: {side} is required")
            ties = config.get("tie_word_embeddings", True)
            more = {"tie_word_embeddings": ties, "architectures": ["Gemma2ForCausalLM"]}
            stack = Gemma2.recipe(ChainMap(more, config[side]))  # not a copy, so that key accesses are recorded
            head, model["init"] = stack.pop("head"), stack.pop("init")
            del stack["type"]
            override(stack, {"layer.attention.dropout": config.get("attention_dropout", 0.0)})
            for key in DROPOUTS:
                override(stack, {key: config.get("dropout_rate", 0.0)})
            model[side] = stack
        model["head"] = head
        _scale_windows(model["encoder"], 2)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        for side in ("encoder", "decoder"):
            stack = {**model[side], "type": "decoder", "head": model["head"], "init": model["init"]}
            if side == "encoder":
                _scale_windows(stack, 0.5)
            config[side] = {**Gemma2.config(stack, "Gemma2ForCausalLM"), "model_type": "t5_gemma_module"}
            del config[side]["architectures"]
        config["vocab_size"] = config["decoder"]["vocab_size"]
        config["tie_word_embeddings"] = config["decoder"]["tie_word_embeddings"]
        config["attention_dropout"] = config["decoder"]["attention_dropout"]
        config["dropout_rate"] = model["decoder"]["final_dropout"]


def _scale_windows(stack: Tree, factor: float) -> None:
    """Scale the window sizes: config.json counts one side of an encoder's window, tfkit counts both."""
    if "layers" in stack:
        stack["layers"] = {name: _scaled(kind, factor) for name, kind in stack["layers"].items()}
    stack["layer"] = _scaled(stack["layer"], factor)


def _scaled(layer: Tree, factor: float) -> Tree:
    mask = layer.get("mask")
    return layer if not mask else {**layer, "mask": {**mask, "size": int(mask["size"] * factor)}}
