"""Embeddings.

| type | choose it when |
|---|---|
| tokens | the model reads token ids: scale, segments, norm, factorised width and pretrained vectors are its options |
| token_dropout | like tokens, but masked tokens are zeroed rather than looked up (ESM) |
| features | the model reads vectors: audio frames, latents, measurements, another model's states |
| patches | the model reads images, cut into square patches (ViT) |
"""

from tfkit.components.embedding.base import Embedding
from tfkit.components.embedding.features import Features, Patches, VectorEmbedding
from tfkit.components.embedding.tokens import TokenDropout, Tokens
from tfkit.components.embedding.vectors import load_vectors

__all__ = ["Embedding", "Features", "Patches", "TokenDropout", "Tokens", "VectorEmbedding", "load_vectors"]
