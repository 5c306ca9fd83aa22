"""A small version of a recipe's model, with layers of the same kinds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import LAYERS
from tfkit.core.errors import RecipeError
from tfkit.models.build import weights_of
from tfkit.recipe.compose import Composed
from tfkit.recipe.load import Recipe, load_composed
from tfkit.recipe.text.node import Node, Scalar, mapping

WIDTH = re.compile("d_(?!conv|state).*|.*_(dim|rank)")  # keys of widths, also in parts of one's own
LEAST, NARROWEST = 4, 32  # width of a head, which two planes turn, and of a model
DEEPEST = 12  # layers of the longest pattern that is searched for
WEIGHTS = 30_000_000  # maximum number of weights of a small model
MOST = {
    "vocab_size": 61, "mask_id": 60, "until": 3, "num_experts": 4, "num_active": 2, "num_groups": 2, "active_groups": 1,
}  # fmt: skip
COUNTED = {"tokenizer": MOST["vocab_size"], "labels": 3}  # words for numbers that data determine
OMITTED = ("special_ids", "vectors")  # keys that do not change what is computed


@dataclass(frozen=True)
class Smaller:
    """Rule that divides widths `by` a number and limits stacks to `depth` layers."""

    by: int
    depth: int
    heads: frozenset[int] = frozenset()  # widths of heads; a scale of 1 / sqrt(one of them) follows it

    def of(self, whole: Recipe) -> Recipe | None:
        """Return the recipe of the small model. Return None if it is invalid, or lacks kinds of layers."""
        root = mapping(whole.root)
        small = replace(whole.root, value={"tfkit": root["tfkit"], "model": self._node(root["model"])})
        try:
            found = load_composed(Composed(small, [], None, None, {}, whole.name), False, whole.imports)
        except RecipeError:
            return None
        return found if _kinds(found.blueprint()) == _kinds(whole.blueprint()) else None

    def _node(self, node: Node, key: str = "") -> Node:
        if isinstance(node.value, dict):
            kept = {name: child for name, child in node.value.items() if name not in OMITTED}
            keys = {name: key if name == "per_layer" else name.split(".")[-1] for name in kept}
            return replace(node, value={name: self._node(child, keys[name]) for name, child in kept.items()})
        if isinstance(node.value, list):
            return replace(node, value=[self._node(child, key) for child in node.value])
        return replace(node, value=self._value(key, node.value))

    def _value(self, key: str, value: Scalar) -> Scalar:
        if key in ("vocab_size", "num_classes") and isinstance(value, str):
            return COUNTED.get(value, value)
        if key == "pattern" and isinstance(value, str):
            kind, _, count = value.partition("*")
            return kind if count and int(count) > DEEPEST else value
        if key == "scale" and isinstance(value, float) and value in {head**-0.5 for head in self.heads}:
            return value * math.sqrt(self.by)
        if not isinstance(value, int):
            return value
        if WIDTH.fullmatch(key):
            return min(value, max(LEAST, value // self.by))
        return min(value, self.depth if key == "num_layers" else MOST.get(key, value))


def smaller(recipe: Recipe, least: int = 1) -> Recipe | None:
    """Return a small version of a recipe's model with layers of the same kinds, or None if there is none.

    Its stacks have at least `least` layers; experts and tokens are few. Limits of lengths and masks are unchanged.
    """
    blueprint = recipe.blueprint()
    depths = [*range(max(least, *_kinds(blueprint)), DEEPEST + 1), LAYERS.most]
    depth = next((depth for depth in depths if Smaller(1, depth).of(recipe)), None)
    if depth is None:
        return None
    widths, all_heads = [plan.d_model for plan in blueprint.stacks()], _heads(blueprint)
    heads = frozenset(head for _, _, head in all_heads)
    room = max(1, min([width // NARROWEST for width in widths] + [head // LEAST for head in heads]))
    divisors = [by for by in range(room, 0, -1) if math.gcd(*widths, *heads) % by == 0]
    # a width that is a multiple of its number of heads stays one, as some published models must
    divisors.sort(key=lambda by: any(width % count == 0 < width // by % count for width, count, _ in all_heads))
    found = (Smaller(by, depth, heads).of(recipe) for by in divisors)
    return next((small for small in found if small is not None and _is_small(small)), None)


def _kinds(blueprint: Blueprint) -> list[int]:
    return [len(plan.layers) for plan in blueprint.stacks()]


def _heads(blueprint: Blueprint) -> set[tuple[int, int, int]]:
    """Return the width of the model, the number of heads and their width for each attention."""
    found = set()
    for plan in blueprint.stacks():
        for config in (sublayer.config for layer in plan.layers for sublayer in layer.sublayers):
            options = dict(config)
            if count := options.get("num_heads"):
                found.add((plan.d_model, count, options.get("head_dim") or plan.d_model // count))
    return found


def _is_small(recipe: Recipe) -> bool:
    """True if the model has few weights and can be built: some parts refuse widths only then."""
    try:
        return weights_of(recipe.blueprint()) <= WEIGHTS
    except Exception:
        return False
