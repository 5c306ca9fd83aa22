"""Feed-forward sublayers.

| type | choose it when |
|---|---|
| mlp | the original, BERT, GPT-2, T5: two projections |
| glu | Llama, Gemma, T5 1.1, ModernBERT: better at the same size; take 2/3 of the mlp's d_ff for its parameters |
| experts | Mixtral, DeepSeek, Qwen-MoE: many feed-forwards, of which each token passes a few |
"""

from tfkit.components.feedforward.dense import MLP, FeedForward, GatedLinearUnit
from tfkit.components.feedforward.experts import Experts

__all__ = ["MLP", "Experts", "FeedForward", "GatedLinearUnit"]
