"""A stack of layers with its embedding, positions and final norm."""

# Axes: batch, time, streams, width (of input vectors, or of last states), d_model.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.components.residual import Residual
from tfkit.components.sublayer import Sublayer
from tfkit.core.blueprint import StackPlan
from tfkit.core.component import Config
from tfkit.core.context import Context, Placement, Span, Visibility, looks_back
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.slots import MaskFacts, PositionFacts
from tfkit.core.store import Store, Stores, of_config
from tfkit.functional.dropout import Dropout
from tfkit.models.call import Call, DecodeState, beyond
from tfkit.models.layer import LastState, Layer, LayerState, recomputed


@dataclass(frozen=True)
class LayerKind:
    """Data that the calls of all equal layers share.

    `keeps` is the number of past keys that a decode state needs (None: all), and `twin` the first kind with the same
    visibility. `position` are the layers' own position parts; None if there are none, or if they have weights
    (`with_weights`), since each layer then has its own.
    """

    rules: Sequence[MaskFacts]
    keeps: int | None
    twin: int
    position: Sequence[PositionFacts] | None = None
    with_weights: bool = False


@dataclass(frozen=True)
class Facts:
    """Properties of a call's tokens, including the past of a decode state, each of shape [batch|1 place]."""

    span: Span
    positions: Tensor
    real: Tensor | None
    segments: Tensor | None
    lengths: Tensor | None  # length of each token's text, [batch|1 place|1], if a position part depends on it
    counted: Tensor | None  # positions without padding, if a position part skips padding

    def visibility(self, rules: Sequence[MaskFacts], first: int, inputs: Inputs) -> Visibility:
        """Return the visibility of the keys from index `first` on."""
        segments = None if self.segments is None else (self.segments[:, self.span.past :], self.segments)
        return Visibility(rules, replace(self.span, first=first), inputs, self.real, segments)

    def placement(self, parts: Sequence[PositionFacts], first: int) -> Placement:
        """Return the positions of all queries, and of the keys from index `first` on."""
        lengths = None if self.lengths is None else self._sides(self.lengths, first)
        counted = None if self.counted is None else self._sides(self.counted, first)
        return Placement(parts, *self._sides(self.positions, first), lengths, counted)

    def _sides(self, fact: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Split a property into its values for queries and for keys from `first` on; a single value serves for both."""
        return (self.span.of_queries(fact), fact[:, first:]) if fact.shape[1] == self.span.keys else (fact, fact)


class Stack(nn.Module):
    """Stack of layers: hidden = final_norm(layer_n(...layer_1(embedding)))."""

    def __init__(self, plan: StackPlan) -> None:
        super().__init__()
        shape = plan.shape()
        self.plan = plan
        self.embedding = None if plan.embedding is None else plan.embedding.build(shape)
        width = plan.d_model if plan.embedding is None else plan.embedding.width(shape)
        self.position = nn.ModuleList(part.build(replace(shape, d_model=width)) for part in plan.position)
        self.layers = nn.ModuleList(_build_layers(plan))
        self.streams = _streams(plan)
        self.final_norm = nn.Identity() if plan.final_norm is None else plan.final_norm.build(shape)
        self.final_dropout = Dropout(plan.final_dropout)
        self._stack_parts: list[PositionFacts] = list(self.position)  # type: ignore[arg-type]
        # names that the store keeps
        self._wanted = frozenset(name for use in plan.store_uses() for name in use.stores.reads)
        self.kinds: list[LayerKind] = []
        for index in range(len(plan.layers)):
            self.kinds.append(self._kind(plan, index))
        self._order = plan.order
        self._last_state = LastState(plan) if plan.last_state else None
        self.needs = plan.needs  # inputs that some part reads
        ends = ("embedding", plan.embedding), ("final_norm", plan.final_norm)
        self._ends_with_store = [name for name, part in ends if of_config(part, shape) != Stores()]
        self.recompute = 0  # number of layers, from the first, that the backward pass recomputes
        self._without = {name: plan.without(name) for name in ("padding", "packing")}
        self._moving = [part for part in self.modules() if isinstance(part, PositionFacts) and part.moves]
        self.moves = bool(self._moving)  # True if positions depend on the text length
        counts = any(isinstance(part, Sublayer) and part.counts_tokens for part in self.modules())
        self.counts_tokens = counts and not self._without["padding"]
        self._pads_first = [one.part_name for one in self.modules() if isinstance(one, Sublayer) and one.pads_first]
        self._skips_padding = any(isinstance(part, PositionFacts) and part.skips_padding for part in self.modules())

    def forward(self, call: Call) -> Tensor:
        """Map [batch time] ids or [batch time width] vectors to hidden states [batch time d_model].

        An encoder with `memory: last_state` returns [batch 1 width].
        """
        self._check_padding(call)
        contexts = self._contexts(call)
        x = self._embed(call, contexts[0])  # [batch time d_model]
        if self.streams is not None:
            x = self.streams.enter(x)  # [batch time streams d_model]
        states = self._states(call)
        for place, (layer, kind, state) in enumerate(zip(self.layers, self._order, states, strict=True)):
            context = contexts[kind]
            if self.kinds[kind].with_weights:
                context = replace(context, position=context.position.of(layer.position))  # type: ignore[arg-type]
            if call.collector.watch:
                context = replace(context, collector=call.collector.at(f"{self.plan.side}.layers.{place}"))
            again = place < self.recompute and torch.is_grad_enabled() and not state
            x = recomputed(layer, x, context) if again else layer(x, context, state)  # the shape of x, or more streams
            if context.collector.watches("hidden_states"):
                context.collector.observe("hidden_states", x)
        if self._last_state is not None and self.plan.side == "encoder":
            return self._last_state.gathered(states)  # [batch 1 width]
        if self.streams is not None:
            x = self.streams.leave(x)  # [batch time d_model]
        out: Tensor = self.final_dropout(self.final_norm(x, **self._with_store("final_norm", contexts[0])))
        return out  # [batch time d_model]

    def _with_store(self, name: str, context: Context) -> dict[str, Context]:
        """Return the additional arguments of the embedding or the final norm: the context if it uses the store."""
        return {"context": context} if name in self._ends_with_store else {}

    def cut(self, vectors: Tensor | None) -> Tensor | None:
        """Convert the vectors of a call to inputs of the embedding, [batch time width]."""
        if vectors is None or self.embedding is None:
            return vectors
        out: Tensor = self.embedding.cut(vectors)
        return out

    def _states(self, call: Call) -> Sequence[LayerState]:
        """Return the states of the layers, from the decode state or from the encoder's last states."""
        states = [{} for _ in self._order] if call.state is None else call.state.layers
        if self._last_state is None:
            return states
        if call.state is None:
            states = self._last_state.new(list(self.layers))  # type: ignore[arg-type]
        if self.plan.side == "decoder":
            self._last_state.begin(states, call.memory)
        return states

    def _check_padding(self, call: Call) -> None:
        """Raise UsageError if some part does not support the call's padding or packing."""
        if (call.real is not None or call.memory_real is not None) and self._without["padding"]:
            lacking = self._without["padding"][0]
            raise UsageError(f"{lacking} cannot mask padding; pass texts of equal length and no attention_mask")
        if call.real is not None and call.state is not None and self._pads_first and not torch.compiler.is_compiling():
            so_far = call.state.real_with(call.real, call.tokens.shape[1])
            if so_far is not None and bool((so_far[:, :-1] & ~so_far[:, 1:]).any()):
                raise UsageError(
                    f"the state of '{self._pads_first[0]}' holds only for padding before a text; pad at the left"
                )
        if call.segments is not None and self._without["packing"]:
            raise UsageError(f"{self._without['packing'][0]} cannot separate packed texts; omit segment_ids")
        if call.segments is not None and call.inputs.extra:
            names = ", ".join(call.inputs.extra)
            raise UsageError(f"the input {names} belongs to a row, but packed texts share a row; omit segment_ids")
        if call.segments is not None and call.inputs.prefix_length is not None:
            raise UsageError(
                "prefix_length counts from the start of a row, but packed texts share a row; omit it, or segment_ids"
            )

    def _embed(self, call: Call, context: Context) -> Tensor:
        placement = context.position.of(self._stack_parts)
        if self.embedding is not None:
            try:
                more = self._with_store("embedding", context)
                out: Tensor = self.embedding(call.inputs, placement, call.vectors, **more)
            except IndexError:  # ids are checked only after a lookup has failed
                wrong = self._wrong_ids(call.inputs)
                if wrong is None:
                    raise
                raise wrong from None
            return out
        added = placement.embed()
        return call.tokens if added is None else call.tokens + added.to(call.tokens.dtype)

    def _wrong_ids(self, inputs: Inputs) -> UsageError | None:
        """Return an error if some ids are outside their tables, else None."""
        segments = 0 if self.plan.embedding is None else self.plan.embedding.num_segments()
        tokens = beyond(inputs.input_ids, self.plan.vocab_size, f"ids of the {self.plan.side}")
        return tokens or beyond(inputs.token_type_ids, segments, "token_type_ids")

    def _contexts(self, call: Call) -> list[Context]:
        """Build one context per distinct layer; equal masks and positions are shared."""
        facts, store = self._facts(call), Store(self._wanted)
        memory = _memory(call, facts, store)
        placements: dict[int, Placement] = {}
        contexts: list[Context] = []
        for index, kind in enumerate(self.kinds):
            # a state that drops old keys starts at the first key that the oldest query sees
            forgets = kind.keeps is not None and call.state is not None and call.state.forgets
            first = max(0, facts.span.past - kind.keeps) if forgets else 0  # type: ignore[operator]
            twin = kind.twin != index
            mask = contexts[kind.twin].mask if twin else facts.visibility(kind.rules, first, call.inputs)
            if first not in placements:
                placements[first] = facts.placement(self._stack_parts, first)
            placement = placements[first] if kind.position is None else placements[first].of(kind.position)
            contexts.append(Context(mask, placement, None, None, memory, call.inputs, call.collector, store))
        return contexts

    def _kind(self, plan: StackPlan, index: int) -> LayerKind:
        layer, first = plan.layers[index], self.layers[plan.order.index(index)]
        rules = [rule.build(plan.shape(plan=layer)) for rule in layer.mask]
        # layers that share keys drop them together
        forgets = all(layer.forgets for layer in (self.layers if self._wanted else [first]))
        keeps = looks_back(rules) if forgets else None
        twin = next((i for i in range(index) if self._sees(plan, i) == (layer.mask, layer.causal, keeps)), index)
        if layer.position is None:
            return LayerKind(rules, keeps, twin)
        own: nn.ModuleList = first.position  # type: ignore[assignment]
        with_weights = next(own.parameters(), None) is not None
        return LayerKind(rules, keeps, twin, None if with_weights else list(own), with_weights)  # type: ignore[arg-type]

    def _sees(self, plan: StackPlan, index: int) -> tuple[object, bool, int | None]:
        """Return the properties that determine a kind's visibility."""
        return plan.layers[index].mask, plan.layers[index].causal, self.kinds[index].keeps

    def _facts(self, call: Call) -> Facts:
        """Compute the positions, padding and segments of the tokens, including the past of a decode state."""
        device, count, state = call.tokens.device, call.tokens.shape[1], call.state
        span = Span(count, count, 0, device) if state is None else state.span(count, device)
        positions, real, segments = call.positions, call.real, call.segments
        if positions is None:
            so_far = real if state is None else state.real_with(real, count)
            positions = placed(so_far, torch.arange(span.past, span.keys, device=device)[None])
        if state is not None:
            positions, real, segments = state.extend(positions, real, segments)
        lengths = counted = None
        if self.moves:
            positions = positions if real is None else positions * real  # padding does not count towards the length
            lengths = text_lengths(positions, segments)
        if self._skips_padding and call.positions is None and real is not None:
            counted = real.cumsum(dim=1) * real - 1
        facts = Facts(span, positions, real, segments, lengths, counted)
        if state is not None:
            self._check_past(state, facts)
        return facts

    def _check_past(self, state: DecodeState, facts: Facts) -> None:
        """Raise UsageError, leaving the state unchanged, if a longer text changes the positions of past tokens.

        Rewound tokens count towards the length with which the past was read.
        """
        past = facts.span.past
        if facts.lengths is not None and past:
            segments = None if facts.segments is None else facts.segments[:, :past]
            before = text_lengths(facts.positions[:, :past], segments) + (state.known - past)
            if not self.same_regime(before, facts.lengths[:, :past]):
                state.take_back(past)
                raise UsageError(
                    f"a text of {state.length + facts.span.queries} tokens changes the positions of cached tokens; "
                    "read the whole text with a new state"
                )
        state.known = state.length

    @property
    def caches(self) -> bool:
        """True if the stack can decode incrementally: no token sees the future, and every part has a cache."""
        return self.plan.caches

    def new_state(self, forgets: bool = True) -> DecodeState:
        """Return an empty decode state, which drops keys that are no longer visible if it `forgets`.

        Raise UsageError if the stack cannot decode incrementally.
        """
        if not self.caches:
            raise UsageError(f"{self.keeps_nothing}; process the whole text instead")
        layers, plans = [], [self.plan.layers[kind] for kind in self._order]
        for layer, kind in zip(self.layers, self._order, strict=True):
            layers.append(layer.new_state(self.kinds[kind].keeps if forgets else None))  # type: ignore[operator]
        names = [{sublayer.name: _named(sublayer.config) for sublayer in plan.sublayers} for plan in plans]
        memories = [frozenset(sublayer.name for sublayer in plan.sublayers if sublayer.memory) for plan in plans]
        state = DecodeState(layers, names, memories)
        state.forgets = forgets
        return state

    @property
    def keeps_nothing(self) -> str:
        """Message that explains why this stack cannot decode from a state."""
        without = self.plan.without("cache")
        why = f"{without[0]} has no cache" if without else "its tokens see later tokens"
        return f"this {self.plan.side} cannot decode from a state: {why}"

    @property
    def takes_gaps(self) -> bool:
        """True if padding may be inside a text: apart from causality, no part depends on token indices."""
        sublayers = [sublayer.config.part for layer in self.plan.layers for sublayer in layer.sublayers]
        plain = all(rule.triangle for kind in self.kinds for rule in kind.rules)
        return plain and all({"masks", "padding"} <= part.capabilities for part in sublayers)

    def same_regime(self, before: Tensor, after: Tensor) -> bool:
        """True if tokens keep their positions when texts grow from `before` to `after` tokens, [rows] each."""
        return all(bool((part.regime(before) == part.regime(after)).all()) for part in self._moving)


def _named(config: Config) -> str:
    return f"{config.part.part_slot} '{config.part.part_name}'"


def _memory(call: Call, facts: Facts, store: Store) -> Context | None:
    """Return the context of cross-attention, with the memory's own length and padding and without positions."""
    if call.memory is None:
        return None
    span, length = facts.span, call.memory.shape[1]
    mask = Visibility((), Span(span.queries, length, 0, span.device), call.inputs, call.memory_real)
    placement = Placement((), facts.placement((), 0).query, torch.arange(length, device=span.device)[None])
    return Context(mask, placement, None, call.memory, None, call.inputs, call.collector, store)


def placed(real: Tensor | None, places: Tensor) -> Tensor:
    """Return the positions of the tokens at `places` [1 new]: if padding precedes tokens, real tokens are counted.

    `real` [batch time] ends with these tokens. Only masks on the CPU are inspected, as others would make the host wait.
    """
    on_host = real is not None and type(real) is Tensor and real.is_cpu and not torch.compiler.is_compiling()
    if real is None or (on_host and bool((real[:, 1:] <= real[:, :-1]).all())):
        return places
    follows = real.flip(1).cumsum(dim=1).flip(1) > 0  # padding at the end does not precede tokens
    gaps = (follows & ~real).cumsum(dim=1)[:, real.shape[1] - places.shape[1] :]
    return (places - gaps).clamp(min=0)  # [batch new]


def text_lengths(positions: Tensor, segments: Tensor | None) -> Tensor:
    """Return the length of each token's text (last position + 1), [batch|1 time], or [batch|1 1] without segments."""
    if segments is None:
        return positions.amax(dim=1, keepdim=True) + 1
    ordered, places = segments.sort(dim=1)
    begins = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))
    text = torch.empty_like(places).scatter(1, places, begins.cumsum(dim=1))  # index of each token's text in its row
    positions = positions.expand(text.shape)
    last = torch.zeros_like(text).scatter_reduce(1, text, positions, "amax")
    return last.gather(1, text) + 1


def _streams(plan: StackPlan) -> Residual | None:
    """Build the instance of the last layer's residual layout that enters and leaves the streams, if it has streams."""
    shape = replace(plan.shape(), streams=plan.streams(plan.num_layers))
    layout: Residual | None = None
    if shape.streams is not None:
        layout = plan.layers[plan.order[-1]].residual.build(shape)
    return layout


def _build_layers(plan: StackPlan) -> list[Layer]:
    """Build the layers in order; layers that share weights share modules."""
    whole: dict[int, Layer] = {}
    parts: dict[tuple[int, str], nn.Module] = {}
    layers = []
    for index, (kind, entry) in enumerate(zip(plan.order, plan.entries, strict=True)):
        layer_plan = plan.layers[kind]
        if layer_plan.shared and entry in whole:
            layers.append(whole[entry])
            continue
        layer = Layer(layer_plan, plan, index)
        whole[entry] = layer
        for sublayer in layer_plan.sublayers:
            if sublayer.config.shared:
                layer.add_module(sublayer.name, parts.setdefault((entry, sublayer.name), getattr(layer, sublayer.name)))
        layers.append(layer)
    return layers
