"""`memory: last_state`: a decoder without cross-attention whose recurrences start from the encoder's last states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfkit.core.blueprint import LayerPlan, StackPlan, SublayerPlan
from tfkit.core.shape import Side
from tfkit.core.slots import HeadFacts
from tfkit.recipe.architecture.distinct import DistinctLayers
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, mapping

NEEDS = "the decoder starts from the encoder's last states"
RECURRENT = "say mixer: lstm, gru or rnn"


def ends_in_states(encoder: StackPlan, keys: Mapping[str, Node], faults: Faults) -> StackPlan:
    """Return the encoder without the parts after its last layer; refuse them if set for the encoder itself."""
    for name in ("final_norm", "final_dropout"):
        node = given(keys, name)
        if node is not None and node.value and node.path.startswith("model.encoder."):
            faults.add(node, f"{NEEDS}, and nothing reads what follows; leave {name} out", at_key=True)
    return replace(encoder, last_state=True, final_norm=None, final_dropout=0.0)


def check_heads(heads: Sequence[tuple[HeadFacts.Config, Node]], faults: Faults) -> None:
    """Refuse heads on the encoder, which provides its last states only."""
    for head, node in heads:
        if head.reads == "encoder":
            text = "the encoder hands over its last states alone; leave reads out, or memory: last_state"
            faults.add(mapping(node).get("reads", node), text)


class LastStates:
    """Checks that each decoder layer can start from the last state of the encoder layer at the same depth."""

    def __init__(self, encoder: StackPlan, decoder: StackPlan, layers: Mapping[Side, DistinctLayers]) -> None:
        self.plans: dict[Side, StackPlan] = {"encoder": encoder, "decoder": decoder}
        self.layers = layers
        self.faults = layers["decoder"].faults
        self._told: set[str] = set()

    def check(self) -> None:
        """Report layers without state, different depths, and different recurrences; each once."""
        sides = [side for side in self.plans if self._hands_over(side)]
        if len(sides) < len(self.plans):
            return
        encoder, decoder = self.plans["encoder"], self.plans["decoder"]
        if encoder.num_layers != decoder.num_layers:
            node, place = self._depth("decoder"), self._depth("encoder").place
            text = f"{NEEDS}, layer by layer: it has {decoder.num_layers} layers and the encoder has "
            self.faults.add(node, f"{text}{encoder.num_layers} (see {place}); give both the same number")
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
        """True if each layer of the stack has a recurrence with a state to hand over, and no mixer without one."""
        for kind, layer in enumerate(self.plans[side].layers):
            mixers = [sub for sub in layer.sublayers if sub.config.part.part_slot == "mixer"]
            others = [sub for sub in layer.sublayers if sub.config.part.part_slot == "attention"]
            lacking = [sub for sub in mixers if not self._widths(side, layer, sub)] or others * (not mixers)
            if mixers and not lacking:
                continue
            node, what = self._node(side, kind, *(sub.name for sub in lacking)), "there is no recurrence"
            if lacking:
                part = lacking[0].config.part
                what = f"{part.part_slot} '{part.part_name}' hands over no last state"
            if node.path not in self._told:  # both may have it from `model.layer`
                self.faults.add(node, f"{what}, and {NEEDS}; {RECURRENT} (and attention: none)")
            self._told.add(node.path)
            return False
        return True

    def _fits(self, index: int, ours: int, theirs: int) -> bool:
        """True if the recurrences of two layers at the same depth agree in kind and width."""
        kinds: dict[Side, int] = {"encoder": ours, "decoder": theirs}
        sides = {side: self.plans[side].layers[kind] for side, kind in kinds.items()}
        pair = {side: list(self._recurrences(side, layer)) for side, layer in sides.items()}
        names = {side: [sub.config.part.part_name for sub, _ in found] for side, found in pair.items()}
        if names["encoder"] != names["decoder"]:
            words = {side: " and ".join(f"'{name}'" for name in found) for side, found in names.items()}
            text = f"layer {index} of the encoder has the recurrence {words['encoder']} and that of the decoder "
            node = self._node("encoder", ours, pair["encoder"][0][0].name)
            self.faults.add(node, f"{text}{words['decoder']}, and {NEEDS}; say the same in both")
            return False
        for (sub, width), (other, wanted) in zip(pair["encoder"], pair["decoder"], strict=True):
            if width != wanted:
                ways = "" if sides["encoder"].causal else ", reading both ways,"
                text = f"layer {index} of the encoder{ways} carries {width[0]} numbers and that of the decoder"
                place = self._node("decoder", theirs, other.name).place
                self.faults.add(
                    self._node("encoder", ours, sub.name),
                    f"{text} {wanted[0]} (see {place}), and {NEEDS}; set d_hidden so that both are equal",
                )
                return False
        return True

    def _warn_of_unread(self) -> None:
        """Warn about computations after the recurrence in the encoder's last layer, which are never read."""
        plan = self.plans["encoder"]
        kind = plan.order[-1]
        layer = plan.layers[kind]
        names = [sub.name for sub in layer.sublayers]
        last, width = max((names.index(sub.name), widths[0]) for sub, widths in self._recurrences("encoder", layer))
        after = [*(["the projection to d_model"] if width != plan.d_model else []), *names[last + 1 :]]
        if layer.residual.part.norm_names(names) and not layer.residual.part.final_norm:
            after.append("its last norm")
        if after:
            text = f"{NEEDS}, and nothing reads {' and '.join(after)} of the encoder's last layer, which never learns"
            self.faults.warn(self._node("encoder", kind, *after), f"{text}; let a kind for that layer leave it out")

    def _recurrences(self, side: Side, layer: LayerPlan) -> Iterator[tuple[SublayerPlan, tuple[int, ...]]]:
        for sub in layer.sublayers:
            if widths := self._widths(side, layer, sub):
                yield sub, widths

    def _widths(self, side: Side, layer: LayerPlan, sub: SublayerPlan) -> tuple[int, ...]:
        return sub.config.state_widths(self.plans[side].shape(plan=layer))

    def _node(self, side: Side, kind: int, *names: str) -> Node:
        """Return the node of the first of these sublayers in a layer; else the layer."""
        node = self.layers[side].nodes[kind]
        keys = mapping(node)
        return next((keys[base] for name in names for base in (name, name.rpartition("_")[0]) if base in keys), node)
