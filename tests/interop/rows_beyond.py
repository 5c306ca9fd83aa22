"""Attention beyond the square: windows shorter than the text, marked tokens, padding."""

from __future__ import annotations

from typing import Any

from .parity import Row
from .rows_classic import PAIR
from .rows_encoders import LABELS, POOLER, SPAN, TINY

# so long that the windows are computed in tiles
SETTINGS = {
    **TINY,
    "max_position_embeddings": 256,
    "attention_window": [4, 8, 4],
    "sep_token_id": 2,
    "type_vocab_size": 2,
}
INERT = ("key.bias", "key_global.bias")
SHARED = {"kind": "encoder", "segments": True, "marks": True, "inert": INERT, "length": 190}


def row(model: str, **more: object) -> Row:
    """A Longformer with that head."""
    settings = {**SETTINGS, **LABELS} if model.endswith("Classification") else SETTINGS
    return Row("longformer", "LongformerConfig", f"Longformer{model}", settings, **SHARED, **more)


LED: dict[str, Any] = {
    **PAIR, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "attention_window": [4, 8],
    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 48,
}  # fmt: skip


def led(model: str, **more: Any) -> Row:
    """A row of LED."""
    return Row("led", "LEDConfig", f"LED{model}", LED, kind="encoder_decoder", marks=True, length=24, **more)


ROWS = (
    led("ForConditionalGeneration"),
    led("Model"),
    led("ForQuestionAnswering", logits=SPAN),
    row("ForMaskedLM"),
    row("ForSequenceClassification"),
    row("ForTokenClassification"),
    row("ForQuestionAnswering", logits=SPAN),
    row("Model", heads=POOLER),
)
