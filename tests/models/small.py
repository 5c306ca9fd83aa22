"""A small decoder as data, to be changed by tests of parts and models."""

from __future__ import annotations

from typing import Any

LAYER: dict[str, Any] = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 12},
}
MODEL = {"type": "decoder", "d_model": 8, "num_layers": 2, "vocab_size": 20, "max_length": 16, "embedding": "tokens"}


def small(layer: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """The recipe with other keys of the layer and of the model."""
    more = {"position": "learned", "layer": {**LAYER, **(layer or {})}, "head": "language_model"}
    return {"tfkit": 1, "model": {**MODEL, **more, **model}}
