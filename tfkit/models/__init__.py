"""Topologies.

| type | choose it when |
|---|---|
| encoder | texts are encoded: classification, tagging, masked tokens, embeddings (BERT-style) |
| decoder | text is generated (GPT-style) |
| encoder_decoder | texts are mapped to texts: translation, summarization (the original) |
"""

from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.models.encoder_decoder import EncoderDecoder
from tfkit.models.single import Decoder, Encoder
from tfkit.models.state import DecodeState

__all__ = ["Body", "DecodeState", "Decoder", "Encoder", "EncoderDecoder", "Model", "ModelOutput", "build_model"]
