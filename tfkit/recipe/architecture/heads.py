"""Heads (rule R14), tied and shared token tables (R9), ids of special tokens, and checks of resolved stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan, SublayerPlan
from tfkit.core.component import Side
from tfkit.core.errors import is_shipped
from tfkit.core.inputs import Inputs
from tfkit.core.options import check_norm
from tfkit.core.slots import AttentionFacts, HeadFacts, MaskFacts, of_kind
from tfkit.recipe.architecture.context import written_masks
from tfkit.recipe.architecture.layers import StackLayers
from tfkit.recipe.architecture.prepare import Preparer, stack_norm
from tfkit.recipe.architecture.stack import WIDTH_LIMIT
from tfkit.recipe.text.faults import Faults, is_whole, shown
from tfkit.recipe.text.node import Node, mapping, node_at, shorten

# masks are evaluated on NEAR x NEAR tokens and, if nothing is visible there, on the first and last of FAR tokens
NEAR, FAR = 128, 1 << 20
MIXING = ("attention", "mixer")  # slots of sublayers that mix tokens


class Sight(NamedTuple):
    """Directions in which the tokens of a layer see others: earlier tokens, later ones, both or none."""

    before: bool
    after: bool


NOTHING, BOTH = Sight(False, False), Sight(True, True)


def check_sight(layers: StackLayers, plan: StackPlan, is_memory: bool) -> None:
    """Warn about tokens that see only themselves; `is_memory` is true if another stack attends to this one."""
    stack = layers.stack
    if plan.max_length == 1:
        if is_memory or any(map(mixes, plan.layers)):
            node = stack.keys.get("max_length") or stack.keys.get("position") or stack.node
            text = "texts have a single token, so attention and recurrences have nothing to learn"
            stack.faults.warn(node, text)
        return
    for layer, node in zip(plan.layers, layers.nodes, strict=True):
        masks = written_masks(stack, mapping(node))
        own = [sub.config for sub in layer.sublayers if not sub.memory] if masks else ()
        # a self-attention whose weights always sum to 1
        chooses = any(isinstance(one, AttentionFacts.Config) and not one.may_attend_to_nothing() for one in own)
        if chooses and mask_sight(layer, plan) == NOTHING:
            text = "each token sees only itself, so the queries and keys of attention never learn"
            stack.faults.warn(masks[-1], text)


def mixes(layer: LayerPlan) -> bool:
    """True if the layer has self-attention or a mixer."""
    return any(not sub.memory and sub.config.part.part_slot in MIXING for sub in layer.sublayers)


def sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the directions in which the sublayers of a layer see other tokens."""
    seen = NOTHING
    for slot in {sub.config.part.part_slot for sub in layer.sublayers if not sub.memory}.intersection(MIXING):
        one = mask_sight(layer, plan) if slot == "attention" else Sight(True, not layer.causal)
        seen = Sight(seen.before or one.before, seen.after or one.after)
    return seen


def mask_sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the directions that the masks of a layer leave visible; both if that depends on the inputs."""
    rules: list[MaskFacts] = [rule.build(plan.shape(plan=layer)) for rule in layer.mask]
    if any(rule.opens or rule.reach() is None for rule in rules):
        return BOTH
    last = min(plan.max_length or FAR, FAR) - 1
    near = np.arange(min(last + 1, NEAR))
    seen = _visible(rules, near, near)
    return seen if seen != NOTHING else _visible(rules, np.array([0, last]), np.arange(last + 1))


def _visible(rules: Sequence[MaskFacts], query: Any, key: Any) -> Sight:
    """Return the directions in which the given queries see the given keys under all rules."""
    if not all(is_shipped(type(rule)) for rule in rules):  # custom rules may call torch
        query, key = torch.from_numpy(query), torch.from_numpy(key)
    query, key = query[None, :, None], key[None, None]
    visible = (query >= 0) & (key >= 0)
    for rule in rules:
        visible = visible & rule.visible(query, key, Inputs())
    return Sight(bool((visible & (key < query)).any()), bool((visible & (key > query)).any()))


def check_memory_is_read(layers: StackLayers, plan: StackPlan) -> None:
    """Refuse a stack whose memory is read by none of its layers."""
    if plan.memory_width is None or any(sub.memory for layer in plan.layers for sub in layer.sublayers):
        return
    memory = layers.stack.keys.get("memory")
    what = "the encoder, which therefore never learns" if memory is None else "this memory"
    heads = next(count for count in (8, 4, 2, 1) if plan.d_model % count == 0)
    way = f"cross_attention: {{type: multi_head, num_heads: {heads}}}"
    # else the nodes that disable cross-attention or attention, then the layer and the stack
    texts = [node for node in (layers.base, *layers.kinds.values()) if node is not None]
    nodes = [mapping(text).get(key) for key in ("cross_attention", "attention") for text in texts]
    left_out = [node for node in nodes if node is not None and node.value is None]
    node = memory or [*left_out, *texts, layers.stack.node][0]
    if node.path.endswith("cross_attention"):
        way += ", or remove it to copy the layer's attention"
    else:
        way += " in the layer (it has no attention to copy)"
    layers.faults.unlearnable(node, f"no layer of the {plan.side} reads {what}; set {way}")


NEEDS = "the decoder starts from the encoder's last states"
RECURRENT = "use mixer: lstm, gru or rnn"


def ends_in_states(encoder: StackPlan, keys: Mapping[str, Node], faults: Faults) -> StackPlan:
    """Return the encoder without a final norm and final dropout; refuse them if `model.encoder` sets them."""
    for name in ("final_norm", "final_dropout"):
        node = node_at(keys, name)
        if node is not None and node.value and node.path.startswith("model.encoder."):
            faults.add(node, f"{NEEDS}, and nothing reads its {name}; remove that key", at_key=True)
    return replace(encoder, last_state=True, final_norm=None, final_dropout=0.0)


def check_last_states(plans: Mapping[Side, StackPlan], layers: Mapping[Side, StackLayers]) -> None:
    """Check that each decoder layer can start from the last state of the encoder layer of the same index.

    Report layers without a state, different depths, and different recurrences, each only once.
    """
    faults, (encoder, decoder) = layers["decoder"].faults, (plans["encoder"], plans["decoder"])
    lacking = [found for side, plan in plans.items() if (found := _without_state(plan, layers[side])) is not None]
    for node, what in {node.path: (node, what) for node, what in reversed(lacking)}.values():  # one layer for both
        faults.add(node, f"{what}, and {NEEDS}; {RECURRENT} (and attention: none)")
    if lacking:
        return
    if encoder.num_layers != decoder.num_layers:
        stacks = [layers[side].stack for side in ("decoder", "encoder")]
        node, other = (text.keys.get("num_layers") or text.keys.get("pattern") or text.node for text in stacks)
        text = f"{NEEDS}, layer by layer, but has {decoder.num_layers} layers while the encoder has "
        faults.add(node, f"{text}{encoder.num_layers} (see {other.place}); use equal numbers")
        return
    pairs = list(zip(encoder.order, decoder.order, strict=True))
    for pair in dict.fromkeys(pairs):
        if (found := _misfit(plans, layers, pairs.index(pair), *pair)) is not None:
            return faults.add(*found)
    _warn_of_unread(encoder, layers["encoder"])


def _without_state(plan: StackPlan, layers: StackLayers) -> tuple[Node, str] | None:
    """Return a layer with no mixer, or with one that has no last state, and what it lacks."""
    for kind, layer in enumerate(plan.layers):
        mixers = [sub for sub in layer.sublayers if sub.config.part.part_slot == "mixer"]
        others = [sub for sub in layer.sublayers if sub.config.part.part_slot == "attention"]
        states = [sub for sub, _ in _recurrences(plan, layer)]
        lacking = [sub for sub in mixers if sub not in states] or others * (not mixers)
        if mixers and not lacking:
            continue
        what = "no recurrence"
        if lacking:
            part = lacking[0].config.part
            what = f"{part.part_slot} '{part.part_name}' has no last state to pass on"
        return _source(layers, kind, *(sub.name for sub in lacking)), what
    return None


def _misfit(
    plans: Mapping[Side, StackPlan], layers: Mapping[Side, StackLayers], index: int, first: int, second: int
) -> tuple[Node, str] | None:
    """Return a difference in type or width between the recurrences of an encoder kind and of a decoder kind."""
    encoder, decoder = plans["encoder"].layers[first], plans["decoder"].layers[second]
    own, others = _recurrences(plans["encoder"], encoder), _recurrences(plans["decoder"], decoder)
    names, other_names = ([sub.config.part.part_name for sub, _ in recurrences] for recurrences in (own, others))
    if names != other_names:
        words = [" and ".join(f"'{name}'" for name in recurrences) for recurrences in (names, other_names)]
        text = f"layer {index} has the recurrence {words[0]} in the encoder and {words[1]} in the decoder"
        return _source(layers["encoder"], first, own[0][0].name), f"{text}, and {NEEDS}; use the same in both"
    for (sub, width), (other, required) in zip(own, others, strict=True):
        if width != required:
            ways = "" if encoder.causal else "bidirectional "
            place = _source(layers["decoder"], second, other.name).place
            text = f"layer {index} has a state of width {width[0]} in the {ways}encoder and of width {required[0]}"
            text += f" in the decoder (see {place}), and {NEEDS}; set d_hidden to match"
            return _source(layers["encoder"], first, sub.name), text
    return None


def _warn_of_unread(plan: StackPlan, layers: StackLayers) -> None:
    """Warn if the encoder's last layer computes anything after its recurrence, since nothing reads it."""
    layer = plan.layers[plan.order[-1]]
    names = [sub.name for sub in layer.sublayers]
    last, width = max((names.index(sub.name), widths[0]) for sub, widths in _recurrences(plan, layer))
    after = [*(["the projection to d_model"] if width != plan.d_model else []), *names[last + 1 :]]
    if layer.residual.part.norm_names(names) and not layer.residual.part.final_norm:
        after.append("its last norm")
    if after:
        text = f"{NEEDS}, and nothing reads {' and '.join(after)} of the encoder's last layer; it would never learn"
        layers.faults.warn(_source(layers, plan.order[-1], *after), f"{text}, so remove it in a kind for that layer")


def _recurrences(plan: StackPlan, layer: LayerPlan) -> list[tuple[SublayerPlan, tuple[int, ...]]]:
    """Return the sublayers of a layer that have a last state, with its widths."""
    found = [(sub, sub.config.state_widths(plan.shape(plan=layer))) for sub in layer.sublayers]
    return [(sub, widths) for sub, widths in found if widths]


def _source(layers: StackLayers, kind: int, *names: str) -> Node:
    """Return the node of the first sublayer in `names` that the layer sets, or the layer's node."""
    node = layers.nodes[kind]
    keys = mapping(node)
    return next((keys[base] for name in names for base in (name, name.rpartition("_")[0]) if base in keys), node)


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
