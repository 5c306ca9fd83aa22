"""Topologies: the models that `model.type` selects.

| type | choose it when |
|---|---|
| encoder | texts are classified, tagged, embedded, or filled in at masked tokens (BERT-style) |
| decoder | text is generated (GPT-style) |
| encoder_decoder | text is generated from another text: translation, summarization (the original Transformer) |
"""

from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.models.call import DecodeState
from tfkit.models.single import Decoder, Encoder, EncoderDecoder

__all__ = ["Body", "DecodeState", "Decoder", "Encoder", "EncoderDecoder", "Model", "ModelOutput", "build_model"]
