"""The decoder counterpart of ModernBERT: Ettin (Weller et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.by_type import ByType
from tfkit.interop.huggingface.families.llama import CHECKPOINT, LAYER, Llama
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

FIRST = "first"  # kind of the first layer, which has no attention norm because the embeddings are normalized
GATE_UP = tuple(f"{LAYER}.feedforward.{name}.{{kind}}" for name in ("gate", "up"))


@register("family", "modernbert_decoder")
class ModernBertDecoder(ByType):
    """ModernBERT decoder: an embedding norm, GEGLU, windows in two of three layers, BERT's head."""

    model_types = ("modernbert-decoder",)
    base = merged(
        Llama.base,
        {
            "embedding": {"norm": True},
            "layer": {"norm": {"type": "layer_norm", "bias": False}, "feedforward": {"activation": "gelu"}},
        },
    )
    heads = {
        "ModernBertDecoderForCausalLM": {"head": {"type": "masked_lm"}},
        "ModernBertDecoderModel": {"head": "none"},
    }
    settings = amended(
        Llama.settings,
        Setting("hidden_activation", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("norm_eps", "layer.norm.eps", 1e-5),
        Setting("norm_bias", "layer.norm.bias", False),
        Setting("embedding_dropout", "embedding.dropout", 0.0),
        Setting("mlp_dropout", "layer.feedforward.dropout", 0.0),
        without=("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps"),
        max_position_embeddings=8192,
    )
    head_settings = (Setting("classifier_activation", "head.activation", "gelu", ACTIVATIONS),)
    rules = (
        Rule("embeddings.tok_embeddings.weight", "decoder.embedding.tokens.weight"),
        Rule("embeddings.norm.{kind}", "decoder.embedding.norm.{kind}"),
        Rule(f"{CHECKPOINT}.attn_norm.{{kind}}", f"{LAYER}.attention_norm.{{kind}}"),
        Rule(f"{CHECKPOINT}.attn.q_proj.{{kind}}", f"{LAYER}.attention.query.{{kind}}"),
        Rule(f"{CHECKPOINT}.attn.k_proj.{{kind}}", f"{LAYER}.attention.key.{{kind}}"),
        Rule(f"{CHECKPOINT}.attn.v_proj.{{kind}}", f"{LAYER}.attention.value.{{kind}}"),
        Rule(f"{CHECKPOINT}.attn.Wo.{{kind}}", f"{LAYER}.attention.output.{{kind}}"),
        Rule(f"{CHECKPOINT}.mlp_norm.{{kind}}", f"{LAYER}.feedforward_norm.{{kind}}"),
        Rule(f"{CHECKPOINT}.mlp.Wi.{{kind}}", GATE_UP),
        Rule(f"{CHECKPOINT}.mlp.Wo.{{kind}}", f"{LAYER}.feedforward.down.{{kind}}"),
        Rule("final_norm.{kind}", "decoder.final_norm.{kind}"),
        *(Rule(f"lm_head.{name}.{{kind}}", f"head.{name}.{{kind}}") for name in ("dense", "norm")),
        Rule("decoder.{kind}", "head.output.{kind}"),
    )
    prefix, unprefixed = "model.", ("lm_head.", "decoder.")
    tied = {"decoder.weight": "embeddings.tok_embeddings.weight"}
    ties, once = True, 1
    rope, local = Rope(theta=160000.0), Rope()
    thetas = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
    scaled = (FULL, SLIDING)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if model["head"] is not None:
            biases = (("dense", config.get("classifier_bias", False)), ("output", config.get("decoder_bias", True)))
            override(model, {"head.bias": [name for name, has in biases if has]})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        biases = value_of(model, "head.bias", [])
        config["classifier_bias"], config["decoder_bias"] = "dense" in biases, "output" in biases

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        return [FIRST, *cls._listed(config, count)[1:]]

    @classmethod
    def _listed(cls, config: ConfigJson, count: int) -> list[str]:
        every = config.get("global_attn_every_n_layers", 3)
        return list(config.get("layer_types") or [SLIDING if index % every else FULL for index in range(count)])

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == FIRST:
            return {**cls.over_layer(config, cls._listed(config, 1)[0]), "attention_norm": None}
        size = config.get("local_attention", 128) // 2  # a causal window covers only the past half
        return {"mask": {"type": "window", "size": size}} if name == SLIDING else {}

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        return super().position(config, cls._listed(config, 1)[0] if name == FIRST else name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["local_attention"] = 2 * (config.pop("sliding_window") or 64)
