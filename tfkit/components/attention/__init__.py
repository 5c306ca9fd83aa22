"""Attentions.

| type | choose it when |
|---|---|
| multi_head | by default; grouped-query, multi-query and single-head attention are options of this part |
| latent | DeepSeek-V2, V3, MiniCPM3: a small decode cache, because keys and values come from one narrow latent |
| differential | Diff Transformer: subtracts the attention maps of paired heads, so that noise cancels |
| longformer | Longformer: a window plus a few marked tokens that connect the text, with separate projections |
| performer | long texts: random features approximate softmax attention, and the decode state has a constant size |
| linear | the cheapest baseline: like performer, with simple features that do not approximate softmax |
"""

from tfkit.components.attention.base import Attention as Attention
from tfkit.components.attention.base import KeyValueState as KeyValueState
from tfkit.components.attention.differential import Differential as Differential
from tfkit.components.attention.latent import Latent as Latent
from tfkit.components.attention.linear import KernelAttention as KernelAttention
from tfkit.components.attention.linear import LinearAttention as LinearAttention
from tfkit.components.attention.linear import Performer as Performer
from tfkit.components.attention.longformer import LongformerAttention as LongformerAttention
from tfkit.components.attention.multi_head import MultiHead as MultiHead
