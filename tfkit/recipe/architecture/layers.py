"""Layers of one stack: `layer` with kinds merged over it (rule R2), and the resulting plans."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import LayerPlan
from tfkit.core.slots import ResidualFacts, of_kind
from tfkit.recipe.architecture.abilities import check_layer
from tfkit.recipe.architecture.masks import check_opposed, hide_future, layer_masks
from tfkit.recipe.architecture.per_layer import NO_PARTS, is_per_layer, varies
from tfkit.recipe.architecture.positions import agreed_heads, layer_positions
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.architecture.stack_text import LayerText, StackText
from tfkit.recipe.architecture.sublayers import (
    SUBLAYER_KEY,
    SublayerResolver,
    check_norms,
    with_cross_attention,
    without_cross_attention,
)
from tfkit.recipe.keys import LAYER, default_part
from tfkit.recipe.overlays.merge import merge
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, mapping, plain

MAX_KINDS = 256  # each is validated separately
PLAIN = [key for key in LAYER.values() if key.is_plain]  # values that the Blueprint stores as written


class LayerResolver:
    """Resolver for the layers of one stack."""

    def __init__(self, stack: StackText) -> None:
        self.stack = stack
        self.faults = stack.faults
        self.base = self._base()
        self.kinds = self._kinds()
        self._written: dict[int, tuple[Node, Node]] = {}  # by the id of the layer's node, which stays alive

    def _base(self) -> Node | None:
        """Return the node of `layer`; None if it cannot be a layer."""
        node = self.stack.keys.get("layer")
        if node is None:
            self.faults.add(self.stack.node, "needs a layer: what each layer is made of")
            return None
        if not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping that describes a layer")
            return None
        return self._without_cross(node) if self._has_no_memory else with_cross_attention(node, self.faults)

    def _kinds(self) -> Mapping[str, Node]:
        node = given(self.stack.keys, "layers")
        if node is not None and not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping of names to what differs from `layer`")
        kinds = {name: kind for name, kind in mapping(node).items() if kind.value is not None}
        return {name: self._without_cross(kind) for name, kind in kinds.items()} if self._has_no_memory else kinds

    @property
    def _has_no_memory(self) -> bool:
        return self.stack.plan.memory_width is None

    def _without_cross(self, node: Node) -> Node:
        return without_cross_attention(node, self.stack, self.faults)

    def check_texts(self) -> bool:
        """Report invalid keys in `layer` or a kind; return False if the layers cannot be resolved."""
        if len(self.kinds) > MAX_KINDS:
            node = self.stack.keys["layers"]
            self.faults.add(node, f"names {len(self.kinds):,} kinds; at most {MAX_KINDS:,} can be told apart")
            return False
        for kind in self.kinds.values():
            if not isinstance(kind.value, dict):
                self.faults.add(kind, "expected a mapping of what differs from `layer`; {} for no change")
        resolvable = True
        for key, child in self._texts():
            if key not in LAYER and SUBLAYER_KEY.fullmatch(key) is None:
                self.faults.unknown_key(child, list(LAYER))
            elif key != "dropout" and is_per_layer(child):
                self.faults.add(child, NO_PARTS)
                resolvable = False
        return resolvable

    def _texts(self) -> Iterator[tuple[str, Node]]:
        """Yield the keys of `layer` and of every kind, used or not."""
        for node in (self.base, *self.kinds.values()):
            yield from mapping(node).items()

    def check_unused(self, used: Collection[tuple[str, ...]]) -> None:
        """Report kinds that the pattern never uses, as far as they can be checked."""
        for kinds in [(), *((kind,) for kind in self.kinds)] if self.base is not None else []:
            # a kind may be complete only in combination with others, so only its own keys are checked
            if not any(set(kinds) <= set(combination) for combination in used) and not varies(self.merged(kinds)):
                self.plan(self.merged(kinds))

    def merged(self, kinds: Sequence[str]) -> Node:
        """Return `layer` with the kinds merged over it in order (R2)."""
        node = self.base if self.base is not None else replace(self.stack.node, value={})
        for kind in kinds:
            if isinstance(self.kinds[kind].value, dict):
                node = merge(node, self.kinds[kind], self.faults.found)
        return node

    def plan(self, node: Node) -> LayerPlan | None:
        """Return the plan of a complete layer node, or None with its faults added."""
        before = len(self.faults.found)
        keys = mapping(node)
        mask, mask_text = layer_masks(self.stack, keys)
        causal = hide_future(mask)
        shape = replace(self.stack.plan.shape(), causal=causal)
        norm_node = given(keys, "norm")
        layer = LayerText(self.stack, node, shape, Preparer(self.faults, norm_node))
        norm = None if norm_node is None else layer.config(norm_node, "norm")
        residual = _residual(layer)
        sublayers = SublayerResolver(layer, norm).resolve()
        position = layer_positions(layer, sublayers)
        values: dict[str, Any] = {key.field: plain(key.kind, keys.get(key.name), self.faults) for key in PLAIN}
        if residual is None or len(self.faults.found) > before:
            return None
        check_norms(layer, residual, sublayers, norm)
        check_opposed(layer, mask)
        num_heads = agreed_heads(sublayers)
        plan = LayerPlan(
            residual=residual, sublayers=tuple(sublayers), norm=norm, mask=mask, causal=causal, position=position,
            num_heads=num_heads, **values,
        )  # fmt: skip
        check_layer(layer, plan)
        if mask_text is not None:
            layer.written["mask"] = mask_text
        as_written = {name: child for name, child in keys.items() if name in LAYER and LAYER[name].field == name}
        self._written[id(node)] = node, replace(node, value={**as_written, **layer.written})
        return plan

    def written(self, node: Node) -> Node:
        """Return the text of a resolved layer, with each part as it was parsed."""
        return self._written[id(node)][1]


def _residual(layer: LayerText) -> ResidualFacts.Config | None:
    default = default_part(LAYER["residual"])
    node = layer.keys.get("residual", replace(layer.node, value=default))
    written = replace(node, value="plain") if node.value is None else node
    return of_kind(layer.config(written, "residual", default=default), ResidualFacts.Config)
