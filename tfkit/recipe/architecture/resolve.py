"""Resolution of `model:` to a Blueprint, an explicit description of every layer without defaults or patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config
from tfkit.core.shape import Side
from tfkit.core.slots import EmbeddingFacts, ModelFacts, of_kind
from tfkit.recipe.architecture.checks import LastStates, check_memory_is_read, check_sight, ends_in_states
from tfkit.recipe.architecture.context import stack_positions
from tfkit.recipe.architecture.heads import HeadResolver, check_readers
from tfkit.recipe.architecture.layers import DistinctLayers, LayerResolver, sharing
from tfkit.recipe.architecture.parametrize import Parametrizer
from tfkit.recipe.architecture.pattern import MAX_LAYERS, PatternEntry, combinations, expand
from tfkit.recipe.architecture.prepare import Preparer, stack_norm, validated
from tfkit.recipe.architecture.stack import Sizes, StackText, Vocabulary, is_last_state
from tfkit.recipe.keys import MODEL, STACK, default_part
from tfkit.recipe.overlays import merge
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, mapping, node_at

SIDES = ("encoder", "decoder")
# keys whose values are stored in the Blueprint as they are
PLAIN = [key for key in STACK.values() if key.is_plain and key.field == key.name]


class ModelResolver:
    """Resolver for one `model:` node; faults are added to `faults`."""

    def __init__(self, node: Node, faults: Faults, vocabulary: Vocabulary) -> None:
        self.node = node
        self.faults = faults
        self.vocabulary = vocabulary
        self.stacks: dict[Side, Mapping[str, Node]] = {}  # keys of each stack
        self.texts: dict[Side, StackText] = {}
        self.layers: dict[Side, DistinctLayers] = {}
        self.entries: dict[Side, Sequence[PatternEntry]] = {}  # pattern entry of each layer
        self.heads: HeadResolver | None = None
        self.partial: Blueprint | None = None  # what could be resolved despite faults

    def resolve(self) -> Blueprint | None:
        """Return the Blueprint, or None if faults prevent it."""
        kind = self._topology()
        if kind is None:
            return None
        sides: Mapping[Side, bool] = kind.part.sides
        self._check_keys(sides)
        own = {key: child for key, child in mapping(self.node).items() if key in STACK}
        self.stacks = {side: self._stack_keys(side, own, len(sides) == 1) for side in sides}
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
                    LastStates(plans["encoder"], plans["decoder"], self.layers).check()
        joined = len(plans) > 1 and kind.part.joined_by_cross_attention
        for side, distinct in self.layers.items():
            check_sight(distinct, plans[side], is_memory=joined and side == "encoder")
            if joined or len(plans) == 1:
                check_memory_is_read(distinct.layers, plans[side])
        self.partial = self._blueprint(kind, plans)
        if not all(plan.layers for plan in plans.values()):
            return None
        check_readers(self.node, self.partial, self.faults)
        if node_at(mapping(self.node), "parametrization") is not None:
            self.partial = Parametrizer(self.node, self.faults, self._resolve_base).applied(self.partial)
        return self.partial

    def _resolve_base(self, node: Node) -> Blueprint | None:
        """Resolve the base model of muP; its faults are added to the same list."""
        return ModelResolver(node, self.faults, Vocabulary(self.vocabulary.size)).resolve()

    def _topology(self) -> ModelFacts.Config | None:
        if not isinstance(self.node.value, dict):
            self.faults.add(self.node, "expected a mapping that describes the model")
            return None
        if "type" not in self.node.value:
            self.faults.add(self.node, "needs a type: encoder, decoder or encoder_decoder")
            return None
        return of_kind(validated(self.node.value["type"], "model", self.faults), ModelFacts.Config)

    def _check_keys(self, sides: Mapping[Side, bool]) -> None:
        model, paired = mapping(self.node), len(sides) > 1
        allowed = [*(key for key in MODEL if key not in SIDES), *STACK, *(sides if paired else ())]
        for key, child in model.items():
            if key in SIDES and key not in allowed:
                text = f"a model of type '{next(iter(sides))}' has one stack; set its keys in model itself"
                self.faults.add(child, text, at_key=True)
            elif key not in allowed:
                self.faults.unknown_key(child, allowed)
        for side in sides if paired else ():
            for key, child in mapping(model.get(side)).items():
                if key not in STACK:
                    self.faults.unknown_key(child, list(STACK))

    def _stack_keys(self, side: Side, own: dict[str, Node], alone: bool) -> Mapping[str, Node]:
        """Return the keys of one stack: `own` from `model:`, with `encoder:` or `decoder:` merged over them (R8)."""
        over = node_at(mapping(self.node), side)
        if alone or over is None:
            return own
        if not isinstance(over.value, dict):
            self.faults.add(over, f"expected a mapping of the {side}'s keys")
            return own
        return mapping(merge(replace(self.node, value=own), over, self.faults.errors))

    # a single stack

    def _stack(self, side: Side, causal: bool, encoder: StackPlan | None) -> StackPlan:
        """Resolve one stack. If its layers have faults, continue without layers to find more faults."""
        keys = self.stacks[side]
        sizes = Sizes(self.node, keys, self.faults)
        num_layers = sizes.read("num_layers", MAX_LAYERS, needed="pattern" not in keys)
        values: dict[str, Any] = {key.field: sizes.plain(key) for key in PLAIN}
        plan = StackPlan(
            side=side,
            vocab_size=sizes.vocabulary(self.vocabulary, side),
            embedding=None,
            position=(),
            layers=(),
            order=(),
            entries=(),
            final_norm=None,
            memory_width=sizes.memory(encoder, len(self.stacks) == 1),
            last_state=encoder is not None and is_last_state(keys.get("memory")),
            **values,
        )
        text = self.texts[side] = StackText(self.node, keys, plan, causal, len(self.stacks) == 1, self.faults)
        return self._with_ends(self._with_layers(text, num_layers), text)

    def _with_layers(self, text: StackText, num_layers: int | None) -> StackPlan:
        layers = LayerResolver(text)
        if not layers.check_texts():
            return text.plan
        entries = expand(text.keys.get("pattern"), num_layers, list(layers.kinds), self.faults)
        layers.check_unused(combinations(entries))
        distinct = DistinctLayers(layers)
        order = distinct.order(entries)
        if not order:
            return text.plan
        self.layers[text.plan.side] = distinct
        self.entries[text.plan.side] = entries
        shared = sharing(distinct.plans, entries, order)
        return replace(text.plan, layers=tuple(distinct.plans), order=tuple(order), entries=shared)

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
        holds = [most for config in position if (most := config.part.holds(config)) is not None]
        return replace(
            plan,
            max_length=min(holds, default=None) if plan.max_length is None else plan.max_length,
            embedding=embedding,
            position=position,
            final_norm=self._final_norm(plan, text),
        )

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

    # the whole model

    def _blueprint(self, kind: ModelFacts.Config, plans: Mapping[Side, StackPlan]) -> Blueprint:
        bare = Blueprint(kind, plans.get("encoder"), plans.get("decoder"), None, (), self._init())  # type: ignore[arg-type]
        heads = self.heads = HeadResolver(self.node, self.stacks, bare, self.faults)
        return replace(
            bare,
            head=heads.head(),
            heads=heads.named(),
            shared_embedding=heads.shared_embedding(),
            special_ids=heads.special_ids(None if self.vocabulary.unknown else bare.last.vocab_size),
        )

    def _init(self) -> Config | None:
        default = default_part(MODEL["init"])
        node = mapping(self.node).get("init", replace(self.node, value=default, path="model.init"))
        if node.value is None:
            self.faults.add(node, "cannot be none; remove init to use the default, xavier")
            return None
        return Preparer(self.faults).config(node, "init", default=default)
