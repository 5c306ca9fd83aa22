"""Objectives, tokenizers and models, each made in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe
from tfkit.training.objective import Objective

LETTERS = "abcdefghijklmnopqrstuvwxyz "


def letters(text: str = LETTERS, **special: Any) -> Tokenizer:
    """Return a tokenizer of single letters."""
    options = {"special_tokens": {"mask": "<mask>", "separator": "<sep>"} | special}
    fitted: Tokenizer = REGISTRY.get("tokenizer", "character").Config.model_validate(options).build().fit([text])
    return fitted


def part(name: str, **options: Any) -> Any:
    """Return an objective."""
    return REGISTRY.get("objective", name).Config.model_validate(options).build()


def bound(name: str, **options: Any) -> Any:
    """Return an objective that knows its tokenizer."""
    objective = part(name, **options)
    objective.rows.bind(letters())
    return objective


def rng(seed: int = 0) -> np.random.Generator:
    """Return a generator of random numbers."""
    return np.random.default_rng(seed)


def batch_of(objective: Objective, examples: Any, longest: int | None = None) -> dict[str, torch.Tensor]:
    """Prepare examples and collate them."""
    return objective.rows.collate(objective.rows.prepare(examples, letters(), longest), rng())


def model(head: Any, kind: str = "encoder", **keys: Any) -> Model:
    """Build a small model with that head."""
    recipe = {
        "type": kind,
        "d_model": 16,
        "vocab_size": 40,
        "num_layers": 2,
        "embedding": {"type": "tokens", "segments": 2} if kind == "encoder" else {"type": "tokens", "shared": True},
        "position": "sinusoidal",
        "layer": {
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 16},
        },
        "head": head,
        "init": {"type": "normal", "std": 0.3},
        **keys,
    }
    if kind == "decoder":
        recipe["embedding"] = "tokens"
    return build_model(load_recipe({"tfkit": 1, "model": recipe}).blueprint(), seed=1).eval()
