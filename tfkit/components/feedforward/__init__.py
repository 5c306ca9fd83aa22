"""Feed-forward sublayers.

| type | choose it when |
|---|---|
| mlp | the original, BERT, GPT-2, T5: two projections |
| glu | Llama, Gemma, T5 1.1, ModernBERT: better at equal size, for which d_ff is 2/3 of the mlp's |
| experts | Mixtral, DeepSeek, Qwen-MoE: many feed-forward layers, a few of which process each token |
"""

from tfkit.components.feedforward.dense import MLP, FeedForward, GatedLinearUnit
from tfkit.components.feedforward.experts import Experts

__all__ = ["MLP", "Experts", "FeedForward", "GatedLinearUnit"]
