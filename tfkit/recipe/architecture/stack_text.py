"""The text of a stack and of a layer as the rules read it, with what is known around it."""

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
    """One stack: `keys` with `encoder:` or `decoder:` laid in, and `plan`, which has its sizes and no layers yet."""

    model: Node
    keys: Mapping[str, Node]
    plan: StackPlan
    causal: bool  # what the model's type says of this stack
    alone: bool  # no other stack shares the text of `model:`
    faults: Faults
    written: dict[str, Node] = field(default_factory=dict)  # the text that each part was made from, by its key

    @property
    def node(self) -> Node:
        """Where a fault stands that is about the stack as a whole: at its first key."""
        return replace(next(iter(self.keys.values()), self.model), path="model")


@dataclass(frozen=True)
class LayerText:
    """One layer of `stack` with its kinds laid in, and the Shape that its parts are checked against."""

    stack: StackText
    node: Node
    shape: Shape
    preparer: Preparer  # knows the layer's norm
    written: dict[str, Node] = field(default_factory=dict)  # the text that each part was made from, by its key

    @property
    def keys(self) -> Mapping[str, Node]:
        """What the layer says."""
        return mapping(self.node)

    @property
    def faults(self) -> Faults:
        """Where the layer's faults go."""
        return self.preparer.faults

    def config(self, node: Node, slot: str, key: str = "", default: str = "") -> Config | None:
        """A part of this layer, checked against its Shape; its text is kept under `key`."""
        config, text = self.preparer.read(node, slot, self.shape, default)
        if key:
            self.written[key] = text
        return config
