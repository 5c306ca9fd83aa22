"""Checks of what the parts of a stack write to `context.store` and read from it, and of their residual streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Problem, with_nested
from tfkit.core.layout import ResidualFacts
from tfkit.core.store import StoreFacts, Stores, StoreUse, links, of_config
from tfkit.recipe.architecture.layers import StackLayers
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, mapping

Inputs = dict[str, tuple[int, str]]  # extra input -> its width, and the part that reads it, with its place


def check_stores(layers: StackLayers, plan: StackPlan, inputs: Inputs) -> None:
    """Refuse names that are read before they are written, or do not fit; warn about names that nothing reads.

    `inputs` are those of earlier stacks; parts that read the same input must agree on its width.
    """
    check = _Check(layers, plan)
    for use in check.uses:
        check.nested(use)
        check.agrees(use, inputs)
    pairs: dict[tuple[StoreUse, StoreUse | None], list[str]] = {}
    for reader, name, writer in links(check.uses):
        pairs.setdefault((reader, writer), []).append(name)
    for (reader, writer), names in pairs.items():
        if check.is_new(reader, f"{names}"):
            check.read(reader, names, writer)
    known = {(use.layer, use.key, name) for pair, names in pairs.items() for use in pair if use for name in names}
    for use in check.uses:
        for name in sorted(use.stores.writes):
            if (use.layer, use.key, name) not in known and check.is_new(use, name):
                text = f"writes '{name}' to context.store, but no later part of the {plan.side} reads it"
                layers.faults.warn(check.node(use), f"{check.words(use)} {text}")


def check_heads(model: Node, blueprint: Blueprint, faults: Faults) -> None:
    """Refuse parts in the options of heads, such as the layers' norm, that use the store or extra inputs."""
    heads = [] if blueprint.head is None else [("head", blueprint.head)]
    for key, head in (*heads, *blueprint.heads):
        for part in list(with_nested(head))[1:]:
            if of_config(part, blueprint.read_by(head).shape()) != Stores():
                name = f"{part.part.part_slot} '{part.part.part_name}'"
                node = mapping(model).get(key, model)
                faults.add(node, f"{name} reads the context, which a part of a head does not have; set another one")


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


class _Check:
    """The parts of one stack; each fault is reported once for equal layers."""

    def __init__(self, layers: StackLayers, plan: StackPlan) -> None:
        self.layers, self.faults, self.plan = layers, layers.faults, plan
        self.uses = list(plan.store_uses())
        self.reported: set[tuple[int, str, str]] = set()

    def nested(self, use: StoreUse) -> None:
        """Refuse parts with names of the store inside of other parts."""
        for config in list(with_nested(use.config))[1:]:
            stores = of_config(config, self.plan.shape())
            if stores != Stores() and self.is_new(use, "nested"):
                name = f"{config.part.part_slot} '{config.part.part_name}'"
                text = f"{name} uses context.{'inputs' if stores.inputs else 'store'}, which a part inside another"
                self.faults.add(self.node(use), f"{text} does not have")

    def agrees(self, use: StoreUse, inputs: Inputs) -> None:
        """Refuse an extra input of another width than that which an earlier part reads."""
        for name, width in use.stores.inputs:
            known, reader = inputs.setdefault(name, (width, f"{self.words(use)}, see {self.node(use).place}"))
            if known != width and self.is_new(use, f"input {name}"):
                text = f"{self.words(use)} reads {width} numbers of the input '{name}', but {reader}, reads {known}"
                self.faults.add(self.node(use), f"{text}; use one width")

    def read(self, reader: StoreUse, names: Sequence[str], writer: StoreUse | None) -> None:
        """Check that names are written before, as the reader requires them."""
        node = self.node(reader)
        if writer is not None:
            both = f"{self.words(reader)} reads what {self.words(writer)} writes, see {self.node(writer).place}"
            problems = self._misfits(reader, names, writer)
            self.faults.problems(node, [one._replace(message=f"{one.message} ({both})") for one in problems])
            return
        text = f"{self.words(reader)} reads {' and '.join(map(repr, names))} from context.store"
        text += f", but no earlier layer of the {self.plan.side} writes {'it' if len(names) == 1 else 'them'}"
        for later in [use for use in self.uses if use.stores.written.issuperset(names)][:1]:
            text += f"; {self.words(later)} does, but later (see {self.node(later).place})"
        self.faults.add(node, text)

    def _misfits(self, reader: StoreUse, names: Sequence[str], writer: StoreUse) -> Iterator[Problem]:
        if reader.stores.keys.intersection(names):
            own, other = (self.plan.layers[use.kind] for use in (reader, writer))
            if (own.mask, own.causal) != (other.mask, other.causal):
                yield Problem("", "layers that share keys need the same mask")
            if own.position != other.position:
                yield Problem("", "layers that share keys need the same position")
        if isinstance(reader.config, StoreFacts.Config):
            for name in names:
                yield from reader.config.check_writer(name, writer.config, self.plan.shape())

    def is_new(self, use: StoreUse, what: str) -> bool:
        """True if this is not reported yet for an equal layer."""
        key = use.kind, use.key, what
        is_new = key not in self.reported
        self.reported.add(key)
        return is_new

    def words(self, use: StoreUse) -> str:
        """Name a part with its layer."""
        part = f"{use.config.part.part_slot} '{use.config.part.part_name}'"
        return part if use.kind < 0 else f"layer {use.layer} ({part})"

    def node(self, use: StoreUse) -> Node:
        """Return the node of a part in the recipe, or that of its layer."""
        if use.kind < 0:
            return self.layers.stack.keys.get(use.key, self.layers.stack.node)
        node = self.layers.nodes[use.kind]
        names = (use.key, "norm") if use.config.part.part_slot == "norm" else (use.key,)
        return next((mapping(node)[name] for name in names if name in mapping(node)), node)
