"""Visibility between the tokens of a stack; without any, mixing sublayers cannot learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfkit.core.blueprint import LayerPlan, StackPlan
from tfkit.core.inputs import Inputs
from tfkit.core.slots import AttentionFacts
from tfkit.recipe.architecture.distinct import DistinctLayers
from tfkit.recipe.architecture.masks import written_masks
from tfkit.recipe.text.values import mapping

# masks are evaluated for NEAR x NEAR tokens; if nothing is visible, for both ends of FAR tokens
NEAR, FAR = 128, 1 << 20
MIXING = ("attention", "mixer")  # slots of sublayers that mix tokens


class Sight(NamedTuple):
    """Flags: some token of a layer sees earlier tokens, later tokens."""

    before: bool
    after: bool

    def __or__(self, other: Sight) -> Sight:
        return Sight(self.before or other.before, self.after or other.after)


NOTHING, BOTH = Sight(False, False), Sight(True, True)


def check_sight(layers: DistinctLayers, plan: StackPlan, is_memory: bool) -> None:
    """Warn about tokens that see only themselves; `is_memory` is set if another stack attends to this one."""
    stack = layers.layers.stack
    if plan.max_length == 1:
        if is_memory or any(map(mixes, plan.layers)):
            node = stack.keys.get("max_length") or stack.keys.get("position") or stack.node
            text = "texts of one token: what would look at another, attention or a recurrence, never learns"
            stack.faults.warn(node, text)
        return
    for layer, node in zip(plan.layers, layers.nodes, strict=True):
        masks = written_masks(stack, mapping(node))
        if masks and _chooses(layer) and mask_sight(layer, plan) == NOTHING:
            text = "each token sees only itself: its attention is a choice of one, and queries and keys never learn"
            stack.faults.warn(masks[-1], text)


def mixes(layer: LayerPlan) -> bool:
    """True if the layer mixes tokens."""
    return any(not sub.memory and sub.config.part.part_slot in MIXING for sub in layer.sublayers)


def _chooses(layer: LayerPlan) -> bool:
    """True if the layer has a self-attention that must attend to some token."""
    own = [sub.config for sub in layer.sublayers if not sub.memory]
    return any(isinstance(config, AttentionFacts.Config) and not config.may_attend_to_nothing() for config in own)


def sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the visibility through any sublayer of a layer."""
    seen = NOTHING
    for slot in {sub.config.part.part_slot for sub in layer.sublayers if not sub.memory}:
        if slot == "attention":
            seen |= mask_sight(layer, plan)
        elif slot == "mixer":
            seen |= Sight(True, not layer.causal)
    return seen


def mask_sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the visibility under a layer's masks; both directions if unknown."""
    rules: list[Any] = [rule.build(plan.shape(plan=layer)) for rule in layer.mask]
    if any(rule.opens or rule.reach() is None for rule in rules):
        return BOTH
    last = min(plan.max_length or FAR, FAR) - 1
    near = torch.arange(min(last + 1, NEAR))
    seen = _shown(rules, near, near)
    return seen if seen != NOTHING else _shown(rules, torch.tensor([0, last]), torch.arange(last + 1))


def _shown(rules: Sequence[Any], query: Tensor, key: Tensor) -> Sight:
    """Return the visibility under these rules between some query and key positions."""
    query, key = query[None, :, None], key[None, None]
    visible = torch.ones(1, query.shape[1], key.shape[2], dtype=torch.bool)
    for rule in rules:
        visible = visible & rule.visible(query, key, Inputs())
    return Sight(bool((visible & (key < query)).any()), bool((visible & (key > query)).any()))
