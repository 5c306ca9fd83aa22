"""Short ways to search, for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfkit.core.options import Slot
from tfkit.generation.rules import Rules
from tfkit.generation.search import prepare
from tfkit.generation.texts import find
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

Ids = Sequence[int]


def best(
    model: Model,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    rules: Rules | None = None,
    strategy: Any = "greedy",
    batch_size: int = 64,
    **how: Any,
) -> list[list[int]]:
    """The ids of the best candidate of each prompt."""
    made = Slot("strategy").validate(strategy).build()
    return [list(found[0].ids) for found in find(made, prepare(model, prompts, most, rules, **how), batch_size)]


def small(kind: str = "decoder", vocab: int = 23, **more: Any) -> Model:
    """A model of one layer, its probabilities neither even nor sharp."""
    layer = {
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 2},
        "feedforward": {"type": "mlp", "d_ff": 16},
    }
    sides = {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 1}} if kind == "encoder_decoder" else {}
    sizes = {"d_model": 16, "vocab_size": vocab, "max_length": 32, **(sides or {"num_layers": 1})}
    parts = {"embedding": "tokens", "position": "learned", "layer": layer, "head": "language_model"}
    said = {"type": kind, **sizes, **parts, "init": {"type": "normal", "std": 0.4}, **more}
    return build_model(load_recipe({"tfkit": 1, "model": said}).blueprint(), seed=5).eval()
