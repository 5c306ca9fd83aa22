"""Use of a memory (rules R15 and R16): a decoder attends to its encoder, and a stack to the memory of a call."""

from __future__ import annotations

from collections.abc import Iterator

from tfkit.core.blueprint import StackPlan
from tfkit.recipe.architecture.layers import LayerResolver
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import mapping


def check_memory_is_read(layers: LayerResolver, plan: StackPlan) -> None:
    """Refuse a stack with a memory that none of its layers attends to; `plan` has the layers."""
    if plan.memory_width is None or any(sub.memory for layer in plan.layers for sub in layer.sublayers):
        return
    memory = layers.stack.keys.get("memory")
    what = "the encoder, which never learns" if memory is None else "this memory"
    heads = next(count for count in (8, 4, 2, 1) if plan.d_model % count == 0)
    way = f"cross_attention: {{type: multi_head, num_heads: {heads}}}"
    node = memory or next(_left_out(layers))
    if node.path.endswith("cross_attention"):
        way += ", or leave it out for one like the layer's attention"
    else:
        way += " in the layer: without one it is as the layer's attention, and there is none"
    layers.faults.unlearnable(node, f"no layer of the {plan.side} reads {what}; say {way}")


def _left_out(layers: LayerResolver) -> Iterator[Node]:
    """Yield nodes that disable cross-attention, or the attention it would copy; finally the layer itself."""
    texts = [node for node in (layers.base, *layers.kinds.values()) if node is not None]
    for key in ("cross_attention", "attention"):
        for text in texts:
            node = mapping(text).get(key)
            if node is not None and node.value is None:
                yield node
    yield from (*texts, layers.stack.node)
