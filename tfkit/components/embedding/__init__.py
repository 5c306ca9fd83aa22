"""Embeddings.

| type | choose it when |
|---|---|
| tokens | the model reads token ids: scale, segments, norm, factorised width and pretrained vectors are its options |
"""

from tfkit.components.embedding.base import Embedding
from tfkit.components.embedding.tokens import Tokens
from tfkit.components.embedding.vectors import load_vectors

__all__ = ["Embedding", "Tokens", "load_vectors"]
