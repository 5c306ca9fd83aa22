"""A small model and a small vocabulary to test parts of training and generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.contracts.options import D_MODEL, required
from tfkit.contracts.samples import LINES
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

TOPOLOGY = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}
MAX_LENGTH = 48


def letters(**special: str | int | None) -> Tokenizer:
    """Return a vocabulary of letters with all special tokens, which `special` overrides."""
    options = {"special_tokens": {"mask": "<mask>", "separator": "<sep>", "sentinels": 20} | special}
    tokenizer: Tokenizer = REGISTRY.get("tokenizer", "character").Config.model_validate(options).build().fit(LINES)
    return tokenizer


def small_model(
    reads: str, head: str, vocab_size: int, beside: Mapping[str, Sequence[str]] | None = None, **head_options: object
) -> Model:
    """Build a two-layer model with the given head, for objectives that read `reads`, in eval mode."""
    pair = {"shared": True} if reads == "encoder_decoder" else {}
    model = {
        "type": TOPOLOGY[reads],
        "d_model": D_MODEL,
        "num_layers": 2,
        "vocab_size": vocab_size,
        "max_length": MAX_LENGTH,
        "embedding": {"type": "tokens", **pair},
        "position": "sinusoidal",
        "layer": {
            "residual": "pre_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 32},
        },
        "head": {"type": head, **required("head", head), **head_options},
        "heads": {name: {"type": types[0], **required("head", types[0])} for name, types in (beside or {}).items()},
        "init": {"type": "normal", "std": 0.3},
    }
    return build_model(load_recipe({"tfkit": 1, "model": model}).blueprint(), seed=1).eval()
