"""Command R (Cohere 2024) and Command R7B (Cohere 2024)."""

from __future__ import annotations

from typing import Any

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.gemma import every
from tfkit.interop.huggingface.families.llama import CHECKPOINT, ENDS, GATED, LAYER, Llama, attention_rules, heads_of
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Factor, Setting, amended
from tfkit.interop.huggingface.tensors import Rule


@register("family", "cohere")
class Cohere(Llama):
    """Command R: parallel attention and feed-forward after one bias-free norm, interleaved rotation, scaled logits."""

    model_types = ("cohere",)
    base = merged(
        Llama.base,
        {
            "embedding": {"type": "tokens"},
            "layer": {"residual": {"type": "parallel"}, "norm": {"type": "layer_norm", "bias": False}},
        },
    )
    heads = heads_of("Cohere")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        without=("head_dim", "mlp_bias", "rms_norm_eps"),
        max_position_embeddings=8192,
    )
    head_settings = (Factor("logit_scale", "head.scale", 0.0625),)
    rules = (
        *ENDS,
        Rule(f"{CHECKPOINT}.input_layernorm.weight", f"{LAYER}.norm.weight"),
        *attention_rules(norms=()),
        *(
            Rule(
                f"{CHECKPOINT}.self_attn.{checkpoint}.weight",
                f"{LAYER}.attention.{own}.weight",
                "number dim -> (number dim)",
            )
            for checkpoint, own in (("q_norm", "query_norm"), ("k_norm", "key_norm"))
        ),
        *GATED,
    )
    rope, ties = Rope(theta=500000.0, layout="interleaved"), True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("use_qk_norm", False):
            each_head(model)
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["use_qk_norm"] = value_of(model, "layer.attention.qk_norm") is not None


@register("family", "cohere2")
class Cohere2(Cohere):
    """Command R7B: three windowed rotary layers for each full layer without positions."""

    model_types = ("cohere2",)
    heads = heads_of("Cohere2")
    rope = Rope(layout="interleaved")
    listed, period, window = True, (SLIDING, SLIDING, SLIDING, FULL), 4096

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 4)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        return super().position(config, name) if name == SLIDING else None

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        del config["use_qk_norm"]


def each_head(model: Tree) -> None:
    """Add query and key norms with separate weights per head, expressed as group norms over all heads."""
    width = model["d_model"] // model["layer"]["attention"]["num_heads"]
    norm = {"type": model["layer"]["norm"]["type"], "bias": False, "group_size": width}
    override(model, {"layer.attention": {"qk_norm": norm, "qk_norm_at": "width"}})
