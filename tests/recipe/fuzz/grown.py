"""Recipes with a random base of muP, and what is compared of two models: initial weights and optimizer groups."""

from __future__ import annotations

from random import Random

import torch

from tfkit.core.errors import RecipeError
from tfkit.models.base import Model
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.training.groups import regroup

from .tree import Pairs, plain

SIZES = (1, 2, 3, 4, 6, 8, 16)
# sizes that follow from others where a recipe does not say them
UNSAID = ("layer.attention.head_dim", "layer.attention.num_kv_heads", "layer.mixer.d_hidden", "embedding.d_embedding")
UNSAID += ("layer.feedforward_2.d_ff", "layer.cross_attention.num_heads", "decoder.d_model", "head.d_output")
ROUNDS = 8

Base = dict[str, int]
Group = tuple[float, float, float]


def said_sizes(model: Pairs, path: str = "") -> Base:
    """The whole numbers of a model's text by dotted key."""
    found: Base = {}
    for key, value in model:
        if type(value) is int and value > 0:
            found[path + key] = value
        elif isinstance(value, Pairs) and key != "special_ids":
            found |= said_sizes(value, f"{path}{key}.")
    return found


def drawn_base(model: Pairs, random: Random) -> Base:
    """Random base sizes: the width more often than others."""
    chances = dict.fromkeys(UNSAID, 0.1) | dict.fromkeys(said_sizes(model), 0.3) | {"d_model": 0.9}
    chosen = [key for key, chance in chances.items() if random.random() < chance]
    return {key: random.choice(SIZES) for key in chosen}


def with_base(recipe: Pairs, base: Base, exponent: float = 1.0) -> Pairs:
    """The recipe under muP."""
    chosen = Pairs([["type", "mup"], ["base", Pairs([key, size] for key, size in base.items())]])
    chosen.append(["depth_exponent", exponent])
    return Pairs(
        [key, Pairs([*value, ["parametrization", chosen]]) if key == "model" else value] for key, value in recipe
    )


def healed_base(recipe: Pairs, base: Base, random: Random) -> Base:
    """The base without what is wrong in it, as far as leaving it out helps."""
    for _ in range(ROUNDS):
        try:
            load_recipe(plain(with_base(recipe, base)))
        except RecipeError as error:
            paths = [fault.path for fault in error.faults]
            wrong = [key for key in base if any(path.startswith(f"model.{key}") for path in paths)]
            base = {key: size for key, size in base.items() if key not in (wrong or random.sample(sorted(base), 1))}
        if not base:
            return {"d_model": random.choice(SIZES)}
    return base


def groups(model: Model) -> dict[str, Group]:
    """The factor on the learning rate, the weight decay and the eps of each parameter by name."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, eps=1e-8, weight_decay=0.1)
    regroup(optimizer, model, Train())
    names = {id(weight): name for name, weight in model.named_parameters()}
    return {
        names[id(weight)]: (group.get("rate", 1.0), group["weight_decay"], group["eps"])
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def difference(one: Model, other: Model) -> str | None:
    """The first difference of two models as they are built and trained."""
    mine, theirs = one.state_dict(), other.state_dict()
    if mine.keys() != theirs.keys():
        return f"weights {sorted(mine.keys() ^ theirs.keys())}"
    for name, weight in mine.items():
        if weight.shape != theirs[name].shape or not torch.equal(weight, theirs[name]):
            return f"weight {name}"
    rates, other_rates = groups(one), groups(other)
    return next((f"group of {name}" for name, group in rates.items() if group != other_rates[name]), None)
