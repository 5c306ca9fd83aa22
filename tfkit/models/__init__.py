"""Topologies.

| type | choose it when |
|---|---|
| encoder | text is understood: classify, tag, fill in masks, embed (BERT-style) |
| decoder | text is continued (GPT-style) |
| encoder_decoder | one text becomes another: translate, summarise (the original) |
"""

from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.models.encoder_decoder import EncoderDecoder
from tfkit.models.single import Decoder, Encoder
from tfkit.models.state import DecodeState

__all__ = ["Body", "DecodeState", "Decoder", "Encoder", "EncoderDecoder", "Model", "ModelOutput", "build_model"]
