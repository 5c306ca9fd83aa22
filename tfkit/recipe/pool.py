"""A head that reads one token for the whole text: that token must have seen the text."""

from __future__ import annotations

from tfkit.core.blueprint import LayerPlan, StackPlan
from tfkit.core.component import Config
from tfkit.recipe.faults import Faults
from tfkit.recipe.node import Node
from tfkit.recipe.sight import NOTHING, mixes, sight
from tfkit.recipe.values import mapping

# the pool of a head -> what its token would have to see, and the pool that does
BLIND = {"first": ("after", "last"), "last": ("before", "first")}


def check_pool(head: Config, plan: StackPlan, node: Node, faults: Faults) -> None:
    """Refuse a head that reads a token which never saw the rest of the text; warn of one that did so by half."""
    pool = getattr(head, "pool", None)
    layers = [plan.layers[kind] for kind in dict.fromkeys(plan.order)]
    if pool not in BLIND or plan.max_length == 1 or not any(map(mixes, layers)):
        return
    place = mapping(node).get("pool", node)
    side, other = BLIND[pool]
    seen = NOTHING
    for layer in layers:
        seen |= sight(layer, plan)
    if seen != NOTHING and not getattr(seen, side):
        text = f"reads the {pool} token, which sees nothing {side} it in this {plan.side}; say pool: {other}, or mean"
        faults.add(place, text)
    elif _ends_in_two_ways(plan.layers[plan.order[-1]]):
        faults.warn(
            place,
            f"reads the {pool} token, of which one half of the last recurrence knows nothing of the text, and never "
            "learns to carry anything on; say pool: mean",
        )


def _ends_in_two_ways(layer: LayerPlan) -> bool:
    """Whether the last that tokens meet in is a recurrence of which each half knows nothing yet at one end."""
    parts = [sub.config.part for sub in layer.sublayers if not sub.memory]
    mixing = [part for part in parts if part.part_slot in ("attention", "mixer")]
    return bool(mixing) and not layer.causal and getattr(mixing[-1], "two_ways", False)
