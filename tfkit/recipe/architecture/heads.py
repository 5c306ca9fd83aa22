"""Heads (rule R14) and the tokens they read, tied and shared token tables (R9), and ids of special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.options import check_norm
from tfkit.core.shape import Side
from tfkit.core.slots import HeadFacts, of_kind
from tfkit.recipe.architecture.checks import MIXING, NOTHING, mixes, sight
from tfkit.recipe.architecture.prepare import Preparer, stack_norm
from tfkit.recipe.architecture.stack import WIDTH_LIMIT
from tfkit.recipe.text.faults import Faults, is_whole, shown
from tfkit.recipe.text.node import Node, mapping, node_at, shorten

SPECIAL = ("pad", "start", "end")


class HeadResolver:
    """Resolver of the heads in `model`, which read the stacks of `blueprint`; `stacks` are the keys of each stack."""

    def __init__(
        self, model: Node, stacks: Mapping[Side, Mapping[str, Node]], blueprint: Blueprint, faults: Faults
    ) -> None:
        self.model = model
        self.stacks = stacks
        self.blueprint = blueprint
        self.faults = faults
        self.written: dict[str, Node] = {}  # source of each head by path

    def head(self) -> HeadFacts.Config | None:
        """Return the head that computes the model's logits."""
        node = node_at(mapping(self.model), "head")
        return None if node is None else self._head(node)

    def named(self) -> tuple[tuple[str, HeadFacts.Config], ...]:
        """Return the additional heads by name."""
        node = node_at(mapping(self.model), "heads")
        if node is not None and not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping of names to heads")
        heads = []
        for name, child in mapping(node).items():
            if not name.isidentifier() or hasattr(nn.ModuleDict, name):
                text = f"'{shorten(name)}' cannot be the name of a head; use a plain word"
                self.faults.add(child, text, at_key=True)
            if child.value is not None and (config := self._head(child)) is not None:
                heads.append((name, config))
        return tuple(heads)

    def _head(self, node: Node) -> HeadFacts.Config | None:
        reads = node_at(mapping(node), "reads")
        side: object = self.blueprint.last.side if reads is None else reads.value
        if side not in ("encoder", "decoder"):
            Preparer(self.faults).config(node, "head")  # reports the invalid `reads`
            return None
        plan: StackPlan | None = getattr(self.blueprint, side)
        if plan is None:
            self.faults.add(reads or node, f"reads the {side}, which this model does not have")
            return None
        preparer = Preparer(self.faults, stack_norm(self.stacks[plan.side]))
        parsed, self.written[node.path] = preparer.read(node, "head", plan.shape(plan.num_layers))
        config = of_kind(parsed, HeadFacts.Config)
        if config is not None:
            self._check_table(config, plan, node)
        return config

    def _check_table(self, config: HeadFacts.Config, plan: StackPlan, node: Node) -> None:
        """Check that a tied head, or a head that searches for a token, is on a stack that embeds token ids."""
        is_set = node_at(self.stacks[plan.side], "embedding") is not None
        if is_set and plan.embedding is None:
            return  # an invalid embedding counts as a table
        if plan.embedding is not None and plan.embedding.reads(plan.shape()) is None:
            if config.is_tied():
                width = plan.embedding.table_width(plan.shape())
                self.faults.problems(node, check_norm("norm", config.table_norm(), width))
            return
        if config.is_tied():
            self.faults.add(mapping(node).get("tied", node), f"tied to a token table, but the {plan.side} has none")
        if config.end_token() is not None:
            text = f"searches for a token, but the {plan.side} reads vectors"
            self.faults.add(mapping(node).get("until", node), text)

    def shared_embedding(self) -> bool:
        """True if both stacks share one token table; report contradictory sizes."""
        plans = list(self.blueprint.stacks())
        sharing = [plan for plan in plans if plan.embedding is not None and plan.embedding.is_shared()]
        if not sharing:
            return False
        node = mapping(self.stacks[sharing[0].side].get("embedding")).get("shared", self.model)
        if len(plans) == 1:
            self.faults.add(node, "the model has only one stack; there is no other token table to share")
        elif len(sharing) == 1:
            self.faults.add(node, f"shared only in the {sharing[0].side}; set it in model.embedding, for both stacks")
        else:
            for option, *sizes in zip(("vocab_size", "width"), *map(self._table, plans), strict=True):
                if sizes[0][0] != sizes[1][0]:
                    both = " and ".join(f"{size} ({written.place})" for size, written in sizes)
                    self.faults.add(node, f"a shared table needs a single {option}, got {both}")
        return len(sharing) == 2

    def _table(self, plan: StackPlan) -> tuple[tuple[int | None, Node], ...]:
        """Return the number of rows and the width of a stack's token table, each with the node that sets it."""
        keys = self.stacks[plan.side]
        width = None if plan.embedding is None else plan.embedding.table_width(plan.shape())
        own = node_at(mapping(keys.get("embedding")), "d_embedding") or keys.get("d_model", self.model)
        return (plan.vocab_size, keys.get("vocab_size", self.model)), (width, own)

    def special_ids(self, size: int | None) -> tuple[tuple[str, int], ...]:
        """Return the ids in `special_ids` by name; each must be below `size`, the vocabulary size if known."""
        ids = []
        for name, child in mapping(mapping(self.model).get("special_ids")).items():
            if name not in SPECIAL:
                self.faults.unknown_key(child, SPECIAL)
            elif not is_whole(child.value) or child.value < 0 or (size is not None and child.value >= size):
                bound = "" if size in (None, WIDTH_LIMIT) else f" below vocab_size {size}"
                self.faults.add(child, f"expected a token id{bound}, got {shown(child.plain())}")
            else:
                ids.append((name, child.value))
        return tuple(ids)


# pooling of a head -> direction in which its token must see others, and the pooling to suggest instead
BLIND = {"first": ("after", "last"), "last": ("before", "first")}


def check_readers(model: Node, blueprint: Blueprint, faults: Faults) -> None:
    """Refuse heads that read a token that sees no others; warn about weights that no head trains."""
    keys, named, last = mapping(model), mapping(mapping(model).get("heads")), blueprint.last
    readers = [] if blueprint.head is None else [(blueprint.head, keys["head"])]
    for name, head in blueprint.heads:
        readers.append((head, named[name]))
    for head, node in readers if last.last_state else ():
        if head.reads == "encoder":
            text = "the encoder passes on only its last states, which no head can read"
            text += "; remove reads, or memory: last_state"
            faults.add(mapping(node).get("reads", node), text)
    if blueprint.head is not None and all(blueprint.read_by(head) is not last for head, _ in readers):
        node = readers[0][1]
        faults.warn(mapping(node).get("reads", node), f"no head reads the {last.side}, which therefore never learns")
    for plan in blueprint.stacks():
        own = [(head, node) for head, node in readers if blueprint.read_by(head) is plan]
        _check_tokens(plan, own, blueprint.head is None, faults)


def _check_tokens(
    plan: StackPlan, readers: Sequence[tuple[HeadFacts.Config, Node]], is_output: bool, faults: Faults
) -> None:
    """Check heads that read a single token of a stack; `is_output` is true if hidden states are an output as well."""
    pooling = []
    for head, node in readers:
        pool = head.pooling()
        if pool == "first" or (pool == "last" and head.end_token() is None):  # with `until`, it may be anywhere
            pooling.append((pool, node))
    kinds = {kind: sight(plan.layers[kind], plan) for kind in set(plan.order) if pooling and mixes(plan.layers[kind])}
    if not kinds or NOTHING in kinds.values() or plan.max_length == 1:
        return  # nothing to check, or already reported
    sights = [kinds[kind] for kind in plan.order if kind in kinds]
    only = not is_output and len(pooling) == len(readers)  # no other output trains the stack
    for pool, node in pooling:
        side, other = BLIND[pool]
        place = mapping(node).get("pool", node)
        blind = next((count for count, seen in enumerate(reversed(sights)) if getattr(seen, side)), len(sights))
        if blind == len(sights):
            text = f"the {pool} token sees nothing {side} it in this {plan.side}"
            faults.unlearnable(place, f"{text}; use pool: {other}, or mean")
        elif only and blind:
            which = "layer" if blind == 1 else f"{blind} layers"
            text = f"the {pool} token sees nothing {side} it in the last {which}, whose queries and keys never learn"
            faults.warn(place, f"{text}; use pool: {other}, or mean")
        elif only and _ends_in_two_ways(plan):
            text = "one direction of the last recurrence has read no other token, so its recurrent weights never learn"
            faults.warn(place, f"at the {pool} token, {text}; use pool: mean")


def _ends_in_two_ways(plan: StackPlan) -> bool:
    """True if the last attention or mixer is a bidirectional recurrence whose weights no other layer shares.

    At either end of the text, one of its directions has read no other token.
    """
    layer = plan.layers[plan.order[-1]]
    mixing = [sub.config for sub in layer.sublayers if not sub.memory and sub.config.part.part_slot in MIXING]
    if not mixing or layer.causal or not mixing[-1].part.two_ways:
        return False
    shared = layer.shared or mixing[-1].shared
    return not shared or plan.entries.count(plan.entries[-1]) == 1
