"""Text and context of a stack and a layer for the resolution rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfkit.core.blueprint import StackPlan
from tfkit.core.component import Config
from tfkit.core.shape import Shape
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import mapping


@dataclass(frozen=True)
class StackText:
    """One stack: `keys` including `encoder:` or `decoder:`, and `plan`, which has its sizes but no layers yet."""

    model: Node
    keys: Mapping[str, Node]
    plan: StackPlan
    causal: bool  # default by the model's type
    alone: bool  # no other stack uses the text of `model:`
    faults: Faults
    written: dict[str, Node] = field(default_factory=dict)  # source text of each part by key

    @property
    def node(self) -> Node:
        """Node for faults of the whole stack: its first key."""
        return replace(next(iter(self.keys.values()), self.model), path="model")


@dataclass(frozen=True)
class LayerText:
    """One layer of `stack` with its kinds merged, and the Shape to check its parts against."""

    stack: StackText
    node: Node
    shape: Shape
    preparer: Preparer  # has the layer's norm
    written: dict[str, Node] = field(default_factory=dict)  # source text of each part by key

    @property
    def keys(self) -> Mapping[str, Node]:
        """Keys of the layer."""
        return mapping(self.node)

    @property
    def faults(self) -> Faults:
        """Faults of the layer."""
        return self.preparer.faults

    def config(self, node: Node, slot: str, key: str = "", default: str = "") -> Config | None:
        """Parse a part of this layer and check it against the Shape; its text is stored under `key`."""
        config, text = self.preparer.read(node, slot, self.shape, default)
        if key:
            self.written[key] = text
        return config
