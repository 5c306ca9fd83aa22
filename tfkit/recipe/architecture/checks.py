"""Checks of resolved stacks: which tokens see each other, whether the memory is read, and `memory: last_state`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tfkit.core.blueprint import LayerPlan, StackPlan, SublayerPlan
from tfkit.core.inputs import Inputs
from tfkit.core.shape import Side
from tfkit.core.slots import AttentionFacts, MaskFacts
from tfkit.recipe.architecture.context import written_masks
from tfkit.recipe.architecture.layers import DistinctLayers, LayerResolver
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, mapping, node_at

# masks are evaluated on NEAR x NEAR tokens and, if nothing is visible there, on the first and last of FAR tokens
NEAR, FAR = 128, 1 << 20
MIXING = ("attention", "mixer")  # slots of sublayers that mix tokens


class Sight(NamedTuple):
    """Directions in which the tokens of a layer see others: earlier tokens, later ones, both or none."""

    before: bool
    after: bool

    def __or__(self, other: Sight) -> Sight:
        return Sight(self.before or other.before, self.after or other.after)


NOTHING, BOTH = Sight(False, False), Sight(True, True)


def check_sight(layers: DistinctLayers, plan: StackPlan, is_memory: bool) -> None:
    """Warn about tokens that see only themselves; `is_memory` is true if another stack attends to this one."""
    stack = layers.layers.stack
    if plan.max_length == 1:
        if is_memory or any(map(mixes, plan.layers)):
            node = stack.keys.get("max_length") or stack.keys.get("position") or stack.node
            text = "texts have a single token, so attention and recurrences have nothing to learn"
            stack.faults.warn(node, text)
        return
    for layer, node in zip(plan.layers, layers.nodes, strict=True):
        masks = written_masks(stack, mapping(node))
        if masks and _chooses(layer) and mask_sight(layer, plan) == NOTHING:
            text = "each token sees only itself, so the queries and keys of attention never learn"
            stack.faults.warn(masks[-1], text)


def mixes(layer: LayerPlan) -> bool:
    """True if the layer has self-attention or a mixer."""
    return any(not sub.memory and sub.config.part.part_slot in MIXING for sub in layer.sublayers)


def _chooses(layer: LayerPlan) -> bool:
    """True if the layer has a self-attention whose weights always sum to 1."""
    own = [sub.config for sub in layer.sublayers if not sub.memory]
    return any(isinstance(config, AttentionFacts.Config) and not config.may_attend_to_nothing() for config in own)


def sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the directions in which the sublayers of a layer see other tokens."""
    seen = NOTHING
    for slot in {sub.config.part.part_slot for sub in layer.sublayers if not sub.memory}:
        if slot == "attention":
            seen |= mask_sight(layer, plan)
        elif slot == "mixer":
            seen |= Sight(True, not layer.causal)
    return seen


def mask_sight(layer: LayerPlan, plan: StackPlan) -> Sight:
    """Return the directions that the masks of a layer leave visible; both if that depends on the inputs."""
    rules: list[MaskFacts] = [rule.build(plan.shape(plan=layer)) for rule in layer.mask]
    if any(rule.opens or rule.reach() is None for rule in rules):
        return BOTH
    last = min(plan.max_length or FAR, FAR) - 1
    near = torch.arange(min(last + 1, NEAR))
    seen = _visible(rules, near, near)
    return seen if seen != NOTHING else _visible(rules, torch.tensor([0, last]), torch.arange(last + 1))


def _visible(rules: Sequence[MaskFacts], query: Tensor, key: Tensor) -> Sight:
    """Return the directions in which the given queries see the given keys under all rules."""
    query, key = query[None, :, None], key[None, None]
    visible = torch.ones(1, query.shape[1], key.shape[2], dtype=torch.bool)
    for rule in rules:
        visible = visible & rule.visible(query, key, Inputs())
    return Sight(bool((visible & (key < query)).any()), bool((visible & (key > query)).any()))


def check_memory_is_read(layers: LayerResolver, plan: StackPlan) -> None:
    """Refuse a stack whose memory is read by none of its layers."""
    if plan.memory_width is None or any(sub.memory for layer in plan.layers for sub in layer.sublayers):
        return
    memory = layers.stack.keys.get("memory")
    what = "the encoder, which therefore never learns" if memory is None else "this memory"
    heads = next(count for count in (8, 4, 2, 1) if plan.d_model % count == 0)
    way = f"cross_attention: {{type: multi_head, num_heads: {heads}}}"
    node = memory or next(_left_out(layers))
    if node.path.endswith("cross_attention"):
        way += ", or remove it to copy the layer's attention"
    else:
        way += " in the layer (it has no attention to copy)"
    layers.faults.unlearnable(node, f"no layer of the {plan.side} reads {what}; set {way}")


def _left_out(layers: LayerResolver) -> Iterator[Node]:
    """Yield the nodes that disable cross-attention or attention, then the layer and the stack as fallbacks."""
    texts = [node for node in (layers.base, *layers.kinds.values()) if node is not None]
    for key in ("cross_attention", "attention"):
        for text in texts:
            node = mapping(text).get(key)
            if node is not None and node.value is None:
                yield node
    yield from (*texts, layers.stack.node)


NEEDS = "the decoder starts from the encoder's last states"
RECURRENT = "use mixer: lstm, gru or rnn"


def ends_in_states(encoder: StackPlan, keys: Mapping[str, Node], faults: Faults) -> StackPlan:
    """Return the encoder without a final norm and final dropout; refuse them if `model.encoder` sets them."""
    for name in ("final_norm", "final_dropout"):
        node = node_at(keys, name)
        if node is not None and node.value and node.path.startswith("model.encoder."):
            faults.add(node, f"{NEEDS}, and nothing reads its {name}; remove that key", at_key=True)
    return replace(encoder, last_state=True, final_norm=None, final_dropout=0.0)


class LastStates:
    """Checks that each decoder layer can start from the last state of the encoder layer of the same index."""

    def __init__(self, encoder: StackPlan, decoder: StackPlan, layers: Mapping[Side, DistinctLayers]) -> None:
        self.plans: dict[Side, StackPlan] = {"encoder": encoder, "decoder": decoder}
        self.layers = layers
        self.faults = layers["decoder"].faults
        self._reported: set[str] = set()

    def check(self) -> None:
        """Report layers without a state, different depths, and different recurrences, each only once."""
        sides = [side for side in self.plans if self._hands_over(side)]
        if len(sides) < len(self.plans):
            return
        encoder, decoder = self.plans["encoder"], self.plans["decoder"]
        if encoder.num_layers != decoder.num_layers:
            node, place = self._depth("decoder"), self._depth("encoder").place
            text = f"{NEEDS}, layer by layer, but has {decoder.num_layers} layers while the encoder has "
            self.faults.add(node, f"{text}{encoder.num_layers} (see {place}); use equal numbers")
            return
        seen: set[tuple[int, int]] = set()
        for index, pair in enumerate(zip(encoder.order, decoder.order, strict=True)):
            if pair not in seen and not self._fits(index, *pair):
                return
            seen.add(pair)
        self._warn_of_unread()

    def _depth(self, side: Side) -> Node:
        stack = self.layers[side].layers.stack
        return stack.keys.get("num_layers") or stack.keys.get("pattern") or stack.node

    def _hands_over(self, side: Side) -> bool:
        """True if each layer of the stack has a mixer, and all its mixers have a last state."""
        for kind, layer in enumerate(self.plans[side].layers):
            mixers = [sub for sub in layer.sublayers if sub.config.part.part_slot == "mixer"]
            others = [sub for sub in layer.sublayers if sub.config.part.part_slot == "attention"]
            lacking = [sub for sub in mixers if not self._widths(side, layer, sub)] or others * (not mixers)
            if mixers and not lacking:
                continue
            node, what = self._node(side, kind, *(sub.name for sub in lacking)), "no recurrence"
            if lacking:
                part = lacking[0].config.part
                what = f"{part.part_slot} '{part.part_name}' has no last state to pass on"
            if node.path not in self._reported:  # `model.layer` may be shared by both stacks
                self.faults.add(node, f"{what}, and {NEEDS}; {RECURRENT} (and attention: none)")
            self._reported.add(node.path)
            return False
        return True

    def _fits(self, index: int, first: int, second: int) -> bool:
        """True if the recurrences of an encoder layer and a decoder layer agree in type and width."""
        kinds: dict[Side, int] = {"encoder": first, "decoder": second}
        sides = {side: self.plans[side].layers[kind] for side, kind in kinds.items()}
        pair = {side: list(self._recurrences(side, layer)) for side, layer in sides.items()}
        names = {side: [sub.config.part.part_name for sub, _ in recurrences] for side, recurrences in pair.items()}
        if names["encoder"] != names["decoder"]:
            words = {side: " and ".join(f"'{name}'" for name in recurrences) for side, recurrences in names.items()}
            text = f"layer {index} has the recurrence {words['encoder']} in the encoder and "
            node = self._node("encoder", first, pair["encoder"][0][0].name)
            self.faults.add(node, f"{text}{words['decoder']} in the decoder, and {NEEDS}; use the same in both")
            return False
        for (sub, width), (other, required) in zip(pair["encoder"], pair["decoder"], strict=True):
            if width != required:
                ways = "" if sides["encoder"].causal else "bidirectional "
                text = f"layer {index} has a state of width {width[0]} in the {ways}encoder and of width"
                place = self._node("decoder", second, other.name).place
                self.faults.add(
                    self._node("encoder", first, sub.name),
                    f"{text} {required[0]} in the decoder (see {place}), and {NEEDS}; set d_hidden to match",
                )
                return False
        return True

    def _warn_of_unread(self) -> None:
        """Warn if the encoder's last layer computes anything after its recurrence, since nothing reads it."""
        plan = self.plans["encoder"]
        kind = plan.order[-1]
        layer = plan.layers[kind]
        names = [sub.name for sub in layer.sublayers]
        last, width = max((names.index(sub.name), widths[0]) for sub, widths in self._recurrences("encoder", layer))
        after = [*(["the projection to d_model"] if width != plan.d_model else []), *names[last + 1 :]]
        if layer.residual.part.norm_names(names) and not layer.residual.part.final_norm:
            after.append("its last norm")
        if after:
            text = f"{NEEDS}, and nothing reads {' and '.join(after)} of the encoder's last layer; it would never learn"
            self.faults.warn(self._node("encoder", kind, *after), f"{text}, so remove it in a kind for that layer")

    def _recurrences(self, side: Side, layer: LayerPlan) -> Iterator[tuple[SublayerPlan, tuple[int, ...]]]:
        for sub in layer.sublayers:
            if widths := self._widths(side, layer, sub):
                yield sub, widths

    def _widths(self, side: Side, layer: LayerPlan, sub: SublayerPlan) -> tuple[int, ...]:
        return sub.config.state_widths(self.plans[side].shape(plan=layer))

    def _node(self, side: Side, kind: int, *names: str) -> Node:
        """Return the node of the first sublayer in `names` that the layer sets, or the layer's node."""
        node = self.layers[side].nodes[kind]
        keys = mapping(node)
        return next((keys[base] for name in names for base in (name, name.rpartition("_")[0]) if base in keys), node)
