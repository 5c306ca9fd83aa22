"""Attentions.

| type | choose it when |
|---|---|
| multi_head | always, until you know better: multi-head, grouped-query, multi-query and single-head are its options |
| latent | DeepSeek-V2, V3, MiniCPM3: a small decode cache, because keys and values come from one narrow latent |
| differential | Diff Transformer: heads in pairs, what one attends to less what the other does, so that noise cancels |
| longformer | Longformer: beside a window, a few marked tokens hold the text together, with projections of their own |
| performer | long texts by random features that come near to softmax attention; decoding keeps one sum |
| linear | the same by plain features, far from softmax: the cheapest, to compare with |
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
