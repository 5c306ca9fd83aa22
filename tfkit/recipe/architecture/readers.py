"""Use of the stacks by heads: some head must read the last stack, and a pooled token must have seen the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.slots import HeadFacts
from tfkit.recipe.architecture.last_state import check_heads
from tfkit.recipe.architecture.sight import MIXING, NOTHING, mixes, sight
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import mapping

# pooling of a head -> direction its token must see, and the pooling whose token sees it
BLIND = {"first": ("after", "last"), "last": ("before", "first")}


def check_readers(model: Node, blueprint: Blueprint, faults: Faults) -> None:
    """Refuse heads on a token that sees nothing; warn about weights that no head, or only a half-blind one, trains."""
    readers = list(_heads(mapping(model), blueprint))
    if blueprint.last.last_state:
        check_heads(readers, faults)
    if blueprint.head is not None and all(blueprint.read_by(head) is not blueprint.last for head, _ in readers):
        node = readers[0][1]
        faults.warn(mapping(node).get("reads", node), f"no head reads the {blueprint.last.side}, which never learns")
    for plan in blueprint.stacks():
        own = [(head, node) for head, node in readers if blueprint.read_by(head) is plan]
        _check_tokens(plan, own, blueprint.head is None, faults)


def _heads(keys: Mapping[str, Node], blueprint: Blueprint) -> Iterator[tuple[HeadFacts.Config, Node]]:
    """Yield every head of the model with its text."""
    if blueprint.head is not None:
        yield blueprint.head, keys["head"]
    texts = mapping(keys.get("heads"))
    yield from ((head, texts[name]) for name, head in blueprint.heads)


def _check_tokens(
    plan: StackPlan, readers: Sequence[tuple[HeadFacts.Config, Node]], is_output: bool, faults: Faults
) -> None:
    """Check heads that read a single token of a stack; `is_output`: the model also returns hidden states."""
    pooling = [(head, node) for head, node in readers if _at_an_end(head)]
    kinds = {kind: sight(plan.layers[kind], plan) for kind in set(plan.order) if mixes(plan.layers[kind])}
    if not pooling or not kinds or NOTHING in kinds.values() or plan.max_length == 1:
        return  # nothing to see, or already reported
    sights = [kinds[kind] for kind in plan.order if kind in kinds]
    only = not is_output and len(pooling) == len(readers)  # the only source of gradients
    for head, node in pooling:
        pool = head.pooling() or ""
        side, other = BLIND[pool]
        place = mapping(node).get("pool", node)
        blind = next((count for count, seen in enumerate(reversed(sights)) if getattr(seen, side)), len(sights))
        if blind == len(sights):
            text = f"the {pool} token sees nothing {side} it in this {plan.side}"
            faults.unlearnable(place, f"{text}; say pool: {other}, or mean")
        elif only and blind:
            which = "layer" if blind == 1 else f"{blind} layers"
            text = f"the {pool} token sees nothing {side} it in the last {which}, where queries and keys never learn"
            faults.warn(place, f"{text}; say pool: {other}, or mean")
        elif only and _ends_in_two_ways(plan):
            text = "one half of the last recurrence has read nothing, and never learns to carry anything on"
            faults.warn(place, f"at the {pool} token {text}; say pool: mean")


def _at_an_end(head: HeadFacts.Config) -> bool:
    """True if the head reads the first or last token; the token found by `until` may be elsewhere."""
    pool = head.pooling()
    return pool == "first" or (pool == "last" and head.end_token() is None)


def _ends_in_two_ways(plan: StackPlan) -> bool:
    """True if the last mixing sublayer is a bidirectional recurrence, whose halves are empty at opposite ends.

    If its weights are shared with other layers, they are trained there.
    """
    layer = plan.layers[plan.order[-1]]
    mixing = [sub.config for sub in layer.sublayers if not sub.memory and sub.config.part.part_slot in MIXING]
    if not mixing or layer.causal or not mixing[-1].part.two_ways:
        return False
    shared = layer.shared or mixing[-1].shared
    return not shared or plan.entries.count(plan.entries[-1]) == 1
