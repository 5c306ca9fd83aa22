"""EuroBERT (Boizard et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.family import laid
from tfkit.interop.huggingface.settings import Setting, amended


@register("family", "eurobert")
class EuroBert(Llama):
    """EuroBERT: a Llama that looks both ways, and fills in masked tokens."""

    model_types = ("eurobert",)
    base = laid(Llama.base, {"type": "encoder"})
    heads: ClassVar = {"EuroBertForMaskedLM": {"head": {"type": "language_model"}}, "EuroBertModel": {"head": "none"}}
    settings = amended(
        Llama.settings,
        Setting("vocab_size", "vocab_size", 128256),
        Setting("max_position_embeddings", "max_length", 8192),
        Setting("hidden_size", "d_model", 768),
        Setting("num_hidden_layers", "num_layers", 12),
        Setting("num_attention_heads", "layer.attention.num_heads", 12),
        Setting("intermediate_size", "layer.feedforward.d_ff", 3072),
        Setting("rms_norm_eps", "layer.norm.eps", 1e-5),
    )
    rules = tuple(replace(rule, ours=str(rule.ours).replace("decoder.", "encoder.")) for rule in Llama.rules)
    head_settings = (Setting("mlp_bias", "head.bias", False),)
