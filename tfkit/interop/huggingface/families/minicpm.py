"""MiniCPM3 (OpenBMB 2024)."""

from __future__ import annotations

import math

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.deepseek import BY_HEAD, LATENT, LATENT_RULES, RANKS, LatentShell
from tfkit.interop.huggingface.families.llama import ENDS, GATED, NORMS, Llama, heads_of
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended

DIGITS = 12  # number of decimals to which the square of a square root is rounded, to undo rounding errors


@register("family", "minicpm3")
class MiniCPM3(LatentShell):
    """MiniCPM3: latent attention; factors on embeddings, sublayer outputs and logits."""

    model_types = ("minicpm3",)
    base = merged(Llama.base, {"layer.attention": {**LATENT, "bias": False}})
    heads = heads_of("MiniCPM3")
    settings = (
        *amended(Llama.settings, Setting("scale_emb", "embedding.scale", 12), without=BY_HEAD),
        *amended(RANKS, v_head_dim=None),
    )
    rules = (*ENDS, *NORMS, *LATENT_RULES, *GATED)
    rope, ties = Rope(scores=True), True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        layers, width = model["num_layers"], model["d_model"]
        if config.get("v_head_dim") is None:
            override(model, {"layer.attention.value_head_dim": width // model["layer"]["attention"]["num_heads"]})
        depth = config.get("scale_depth", 1.4)
        override(model, {"layer.residual.branch_scale": 1.0 if depth is None else depth / math.sqrt(layers)})
        super().to_recipe(model, config)
        if model["head"] is not None:
            override(model, {"head.scale": (config.get("dim_model_base", 256) or width) / width})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        scale = float(value_of(model, "layer.residual.branch_scale"))
        config["scale_depth"] = round(scale * math.sqrt(config["num_hidden_layers"]), DIGITS)
        base = ((model["head"] or {}).get("scale") or 1.0) * config["hidden_size"]
        config["dim_model_base"] = round(base)
