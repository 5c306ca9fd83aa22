"""EuroBERT (Boizard et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import Setting, amended


@register("family", "eurobert")
class EuroBert(Llama):
    """EuroBERT: a bidirectional Llama with a masked language model head."""

    model_types = ("eurobert",)
    base = merged(Llama.base, {"type": "encoder"})
    heads: ClassVar = {"EuroBertForMaskedLM": {"head": {"type": "language_model"}}, "EuroBertModel": {"head": "none"}}
    settings = amended(
        Llama.settings,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
    )
    rules = tuple(replace(rule, own=str(rule.own).replace("decoder.", "encoder.")) for rule in Llama.rules)
    head_settings = (Setting("mlp_bias", "head.bias", False),)
