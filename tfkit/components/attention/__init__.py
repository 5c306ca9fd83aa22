"""Attentions.

| type | choose it when |
|---|---|
| multi_head | always, until you know better: multi-head, grouped-query, multi-query and single-head are its options |
| latent | DeepSeek-V2, V3, MiniCPM3: a small decode cache, because keys and values come from one narrow latent |
| differential | Diff Transformer: heads in pairs, the attention of one minus that of the other, so that noise cancels |
| longformer | Longformer: a window plus a few marked tokens that connect the text, with their own projections |
| performer | long texts, with random features that approximate softmax attention; the decode state is one sum |
| linear | the same with plain features, far from softmax: the cheapest baseline |
"""

from tfkit.components.attention.base import Attention, KeyValueState
from tfkit.components.attention.differential import Differential
from tfkit.components.attention.kernel import KernelAttention
from tfkit.components.attention.latent import Latent
from tfkit.components.attention.linear import LinearAttention, Performer
from tfkit.components.attention.longformer import LongformerAttention
from tfkit.components.attention.multi_head import MultiHead

__all__ = [
    "Attention",
    "Differential",
    "KernelAttention",
    "KeyValueState",
    "Latent",
    "LinearAttention",
    "LongformerAttention",
    "MultiHead",
    "Performer",
]
