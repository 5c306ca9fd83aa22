"""Mask rules. Limits are ANDed, openings ORed to them; padding and packed segments hold over all.

| type | | choose it when |
|---|---|---|
| causal | limit | the model writes from left to right; a decoder begins with it |
| reverse_causal | limit | the model reads from right to left |
| window | limit | long texts: each token sees its neighbours (Mistral, Gemma 2, ModernBERT, Longformer) |
| chunk | limit | long texts in pieces that do not see one another (Llama 4) |
| dilated | limit | a window is to reach further for the same work (Longformer's upper layers) |
| prefix | opening | a prompt is to be read both ways by a model that writes (prefix-LM) |
| global_tokens | opening | a few tokens hold the whole text together beside a window (Longformer) |
"""

from tfkit.components.mask.base import Mask
from tfkit.components.mask.causal import Causal
from tfkit.components.mask.chunk import Chunk
from tfkit.components.mask.dilated import Dilated
from tfkit.components.mask.global_tokens import GlobalTokens
from tfkit.components.mask.prefix import Prefix
from tfkit.components.mask.reverse_causal import ReverseCausal
from tfkit.components.mask.window import Window

__all__ = ["Causal", "Chunk", "Dilated", "GlobalTokens", "Mask", "Prefix", "ReverseCausal", "Window"]
