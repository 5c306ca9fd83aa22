"""Attention beyond the square: windows shorter than the text, marked tokens, padding."""

from __future__ import annotations

from .parity import Row
from .rows_encoders import LABELS, POOLER, SPAN, TINY

# so long that the windows are computed in tiles
SETTINGS = {
    **TINY,
    "max_position_embeddings": 256,
    "attention_window": [4, 8, 6],
    "sep_token_id": 2,
    "type_vocab_size": 2,
}
INERT = ("key.bias", "key_global.bias")
SHARED = {"kind": "encoder", "segments": True, "marks": True, "inert": INERT, "length": 190}


def row(model: str, **more: object) -> Row:
    """A Longformer with that head."""
    settings = {**SETTINGS, **LABELS} if model.endswith("Classification") else SETTINGS
    return Row("longformer", "LongformerConfig", f"Longformer{model}", settings, **SHARED, **more)


ROWS = (
    row("ForMaskedLM"),
    row("ForSequenceClassification"),
    row("ForTokenClassification"),
    row("ForQuestionAnswering", logits=SPAN),
    row("Model", heads=POOLER),
)
