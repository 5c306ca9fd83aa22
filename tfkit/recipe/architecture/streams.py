"""Check that the residual layouts of a stack have the same streams."""

from __future__ import annotations

from tfkit.core.blueprint import StackPlan
from tfkit.core.layout import ResidualFacts
from tfkit.recipe.architecture.layers import StackLayers
from tfkit.recipe.text.node import mapping


def check_streams(layers: StackLayers, plan: StackPlan) -> None:
    """Refuse layouts without a positive number of streams, or with other streams than the first layer's."""
    kinds = list(dict.fromkeys(plan.order))
    nodes = [mapping(layers.nodes[kind]).get("residual", layers.nodes[kind]) for kind in kinds]
    configs = [plan.layers[kind].residual for kind in kinds]
    for kind, node, config in zip(kinds, nodes, configs, strict=True):
        number = config.num_streams()
        if number is not None and number < 1:
            layers.faults.add(node, f"expected at least 1 stream, got {number}")
        elif _ends(config) != _ends(configs[0]):
            text = f"layer {plan.order.index(kind)} ({_words(config)}) does not fit layer 0 ({_words(configs[0])}, see "
            text += f"{nodes[0].place}): the layers of a stack need the same number of streams, entered and left alike"
            layers.faults.add(node, text)


def _ends(config: ResidualFacts.Config) -> tuple[object, ...]:
    number, part = config.num_streams(), config.part
    return () if number is None else (number, part.enter, part.leave)


def _words(config: ResidualFacts.Config) -> str:
    number = config.num_streams() or "no"
    return f"residual '{config.part.part_name}' with {number} stream{'s' * (number != 1)}"
