"""OLMo (Groeneveld et al. 2024), OLMo 2 (OLMo team 2024) and OLMo 3 (OLMo team 2025)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.by_type import ByType
from tfkit.interop.huggingface.families.llama import ATTENTION, ENDS, GATED, Llama, heads_of, norm_rules
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import Setting, amended

SETTINGS = amended(Llama.settings, without=("mlp_bias", "head_dim"))


@register("family", "olmo")
class Olmo(Llama):
    """OLMo: norms without weights; clipped queries, keys and values."""

    model_types = ("olmo",)
    base = merged(Llama.base, {"layer.norm": {"type": "layer_norm", "affine": False, "eps": 1e-5}})
    heads = heads_of("Olmo")
    settings = amended(SETTINGS, Setting("clip_qkv", "layer.attention.clip", None), without=("rms_norm_eps",))


@register("family", "olmo2")
class Olmo2(Llama):
    """OLMo 2: norms of the sublayer outputs only; query and key norms over all heads."""

    model_types = ("olmo2",)
    base = merged(
        Llama.base,
        {"layer": {"residual": {"type": "branch_norm"}, "attention": {"qk_norm": True, "qk_norm_at": "width"}}},
    )
    heads = heads_of("Olmo2")
    settings = amended(SETTINGS, rms_norm_eps=1e-5)
    rules = (
        *ENDS,
        *norm_rules(attention_norm="post_attention_layernorm", feedforward_norm="post_feedforward_layernorm"),
        *ATTENTION,
        *GATED,
    )


@register("family", "olmo3")
class Olmo3(ByType, Olmo2):
    """OLMo 3: three windowed layers for each full layer; only full layers have scaled rotary positions."""

    model_types = ("olmo3",)
    heads = heads_of("Olmo3")
    period, window = (SLIDING, SLIDING, SLIDING, FULL), 4096
    rope, local = Rope(theta=500000.0), Rope(theta=500000.0)
