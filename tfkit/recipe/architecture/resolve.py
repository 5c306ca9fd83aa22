"""Resolution of `model:` to a Blueprint, an explicit description of every layer without defaults or patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config, Side
from tfkit.core.slots import EmbeddingFacts, ModelFacts, of_kind
from tfkit.recipe.architecture.context import stack_positions
from tfkit.recipe.architecture.heads import (
    HeadResolver,
    check_last_states,
    check_memory_is_read,
    check_readers,
    check_sight,
    ends_in_states,
)
from tfkit.recipe.architecture.layers import StackLayers, sharing
from tfkit.recipe.architecture.parametrize import Parametrizer
from tfkit.recipe.architecture.prepare import MAX_LAYERS, PatternEntry, Preparer, expand, stack_norm, validated
from tfkit.recipe.architecture.stack import StackText, Vocabulary, is_last_state, memory_width, read_plain, read_size
from tfkit.recipe.architecture.stores import Inputs, check_heads, check_stores, check_streams
from tfkit.recipe.keys import MODEL, STACK, default_part
from tfkit.recipe.overlays import merge
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, mapping, node_at

SIDES = ("encoder", "decoder")
# keys whose values are stored in the Blueprint as they are
PLAIN = [key for key in STACK.values() if key.is_plain and key.field == key.name]
INIT = default_part(MODEL["init"])


class ModelResolver:
    """Resolver for one `model:` node; faults are added to `faults`."""

    def __init__(self, node: Node, faults: Faults, vocabulary: Vocabulary) -> None:
        self.node = node
        self.faults = faults
        self.vocabulary = vocabulary
        self.stacks: dict[Side, Mapping[str, Node]] = {}  # keys of each stack
        self.texts: dict[Side, StackText] = {}
        self.layers: dict[Side, StackLayers] = {}
        self.entries: dict[Side, Sequence[PatternEntry]] = {}  # pattern entry of each layer
        self.heads: HeadResolver | None = None
        self.partial: Blueprint | None = None  # what could be resolved despite faults

    def resolve(self) -> Blueprint | None:
        """Return the Blueprint, or None if faults prevent it."""
        if not isinstance(self.node.value, dict):
            self.faults.add(self.node, "expected a mapping that describes the model")
            return None
        if "type" not in self.node.value:
            self.faults.add(self.node, "needs a type: encoder, decoder or encoder_decoder")
            return None
        kind = of_kind(validated(self.node.value["type"], "model", self.faults), ModelFacts.Config)
        if kind is None:
            return None
        sides: Mapping[Side, bool] = kind.part.sides
        self._read_keys(sides)
        plans: dict[Side, StackPlan] = {}
        for side, causal in sides.items():
            plans[side] = self._stack(side, causal, plans.get("encoder"))
        if len(plans) == 2:
            encoder, decoder = plans["encoder"], plans["decoder"]
            plans["encoder"] = replace(encoder, other_depth=decoder.num_layers)
            plans["decoder"] = replace(decoder, other_depth=encoder.num_layers)
            if decoder.last_state:
                plans["encoder"] = ends_in_states(plans["encoder"], self.stacks["encoder"], self.faults)
                if len(self.layers) == 2:
                    check_last_states(plans, self.layers)
        joined = len(plans) > 1 and kind.part.joined_by_cross_attention
        inputs: Inputs = {}
        for side, layers in self.layers.items():
            check_sight(layers, plans[side], is_memory=joined and side == "encoder")
            check_stores(layers, plans[side], inputs)
            check_streams(layers, plans[side])
            if joined or len(plans) == 1:
                check_memory_is_read(layers, plans[side])
        self.partial = self._blueprint(kind, plans)
        if len(self.layers) < len(plans):
            return None
        check_readers(self.node, self.partial, self.faults)
        check_heads(self.node, self.partial, self.faults)
        if node_at(mapping(self.node), "parametrization") is not None:
            self.partial = Parametrizer(self.node, self.faults, self._resolve_base).applied(self.partial)
        return self.partial

    def _resolve_base(self, node: Node) -> Blueprint | None:
        """Resolve the base model of muP; its faults are added to the same list."""
        return ModelResolver(node, self.faults, Vocabulary(self.vocabulary.size)).resolve()

    def _read_keys(self, sides: Mapping[Side, bool]) -> None:
        """Set the keys of each stack: those in `model:`, with `encoder:` or `decoder:` merged over them (R8)."""
        model, paired = mapping(self.node), len(sides) > 1
        allowed = [*(key for key in MODEL if key not in SIDES), *STACK, *(sides if paired else ())]
        for key, child in model.items():
            if key in SIDES and key not in allowed:
                text = f"a model of type '{next(iter(sides))}' has one stack; set its keys in model itself"
                self.faults.add(child, text, at_key=True)
            elif key not in allowed:
                self.faults.unknown_key(child, allowed)
        own = {key: child for key, child in model.items() if key in STACK}
        for side in sides:
            over = node_at(model, side) if paired else None
            self.stacks[side] = own
            for key, child in mapping(over).items():
                if key not in STACK:
                    self.faults.unknown_key(child, list(STACK))
            if over is not None and isinstance(over.value, dict):
                self.stacks[side] = mapping(merge(replace(self.node, value=own), over, self.faults.errors))
            elif over is not None:
                self.faults.add(over, f"expected a mapping of the {side}'s keys")

    def _stack(self, side: Side, causal: bool, encoder: StackPlan | None) -> StackPlan:
        """Resolve one stack. If its layers have faults, continue without layers to find more faults."""
        keys, alone = self.stacks[side], len(self.stacks) == 1
        num_layers = read_size(self.node, keys, "num_layers", self.faults, MAX_LAYERS, needed="pattern" not in keys)
        values: dict[str, Any] = {key.field: read_plain(self.node, keys, key, self.faults) for key in PLAIN}
        plan = StackPlan(
            side=side,
            vocab_size=self.vocabulary.read(keys, side, self.faults),
            embedding=None,
            position=(),
            layers=(),
            order=(),
            entries=(),
            final_norm=None,
            memory_width=memory_width(keys, encoder, alone, self.faults),
            last_state=encoder is not None and is_last_state(keys.get("memory")),
            **values,
        )
        text = self.texts[side] = StackText(self.node, keys, plan, causal, alone, self.faults)
        layers = StackLayers(text)
        if layers.check_texts():
            entries = expand(keys.get("pattern"), num_layers, list(layers.kinds), self.faults)
            if order := layers.order(entries):
                self.layers[side], self.entries[side] = layers, entries
                shared = sharing(layers.plans, entries, order)
                plan = replace(plan, layers=tuple(layers.plans), order=tuple(order), entries=shared)
        return self._with_ends(plan, text)

    def _with_ends(self, plan: StackPlan, text: StackText) -> StackPlan:
        """Add the embedding, position and final norm, which depend on the layers."""
        keys = text.keys
        preparer = Preparer(self.faults, stack_norm(keys))
        node, config = node_at(keys, "embedding"), None
        if node is not None:
            config, text.written["embedding"] = preparer.read(node, "embedding", plan.shape())
        embedding = of_kind(config, EmbeddingFacts.Config)
        width = plan.d_model if embedding is None else embedding.width(plan.shape())
        position, written = stack_positions(keys.get("position"), plan, width, preparer)
        if written is not None:
            text.written["position"] = written
        max_length = plan.max_length
        if max_length is None:
            holds = [most for config in position if (most := config.part.holds(config)) is not None]
            max_length = min(holds, default=None)
        final_norm = self._final_norm(plan, text)
        return replace(plan, max_length=max_length, embedding=embedding, position=position, final_norm=final_norm)

    def _final_norm(self, plan: StackPlan, text: StackText) -> Config | None:
        """Return the final norm, merged over the layers' norm; by default, the last layer's layout decides (R12)."""
        node, norm = text.keys.get("final_norm"), stack_norm(text.keys)
        if node is None:
            ends = bool(plan.layers) and plan.layers[plan.order[-1]].residual.part.final_norm
            node = norm if ends else None
        elif node.value is True:
            if norm is None:
                self.faults.add(node, "true means the stack's norm, but layer.norm is not set")
            node = norm
        elif node.value is not None and norm is not None:
            node = merge(norm, node, self.faults.errors)
        if node is not None:
            text.written["final_norm"] = node
        return None if node is None or node.value is None else Preparer(self.faults).config(node, "norm", plan.shape())

    def _blueprint(self, kind: ModelFacts.Config, plans: Mapping[Side, StackPlan]) -> Blueprint:
        node, init = mapping(self.node).get("init", replace(self.node, value=INIT, path="model.init")), None
        if node.value is None:
            self.faults.add(node, "cannot be none; remove init to use the default, xavier")
        else:
            init = Preparer(self.faults).config(node, "init", default=INIT)
        bare = Blueprint(kind, plans.get("encoder"), plans.get("decoder"), None, (), init)  # type: ignore[arg-type]
        heads = self.heads = HeadResolver(self.node, self.stacks, bare, self.faults)
        return replace(
            bare,
            head=heads.head(),
            heads=heads.named(),
            shared_embedding=heads.shared_embedding(),
            special_ids=heads.special_ids(None if self.vocabulary.unknown else bare.last.vocab_size),
        )
