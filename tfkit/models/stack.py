"""A stack of layers, with its embedding, its positions and its final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import StackPlan
from tfkit.core.context import Collector, Context, Inputs, Placement, Positioned, Rule, Span, Visibility
from tfkit.core.errors import UsageError
from tfkit.functional.dropout import Dropout
from tfkit.models.layer import Layer
from tfkit.models.state import DecodeState


@dataclass(frozen=True)
class Call:
    """What a call hands to one stack. Ids or vectors are given; the rest may be absent."""

    inputs: Inputs = field(default_factory=Inputs)
    vectors: Tensor | None = None  # [batch time width] instead of ids
    real: Tensor | None = None  # [batch time], True = a real token
    positions: Tensor | None = None  # [batch time]
    segments: Tensor | None = None  # [batch time], equal numbers see one another
    memory: Tensor | None = None  # [batch source memory_width]
    memory_real: Tensor | None = None  # [batch source]
    state: DecodeState | None = None
    collector: Collector = field(default_factory=Collector)

    @property
    def tokens(self) -> Tensor:
        """Ids or vectors, whichever was given."""
        given = self.inputs.input_ids if self.vectors is None else self.vectors
        if given is None:
            raise UsageError("give input_ids, or vectors as inputs_embeds")
        return given


@dataclass(frozen=True)
class Kind:
    """What all equal layers have in common in a call; `twin` is the first distinct layer with the same mask rules.

    `position` are weightless parts of the layers' own, made once for all of them; None where there are none, or where
    each layer has parts `with_weights`.
    """

    rules: Sequence[Rule]
    twin: int
    position: Sequence[Positioned] | None = None
    with_weights: bool = False


class Stack(nn.Module):
    """hidden = final_norm(layer_n(...layer_1(embedding)))."""

    def __init__(self, plan: StackPlan) -> None:
        super().__init__()
        shape = plan.shape()
        self.plan = plan
        self.embedding = None if plan.embedding is None else plan.embedding.build(shape)
        width = plan.d_model if plan.embedding is None else plan.embedding.width(shape)  # type: ignore[attr-defined]
        self.position = nn.ModuleList(part.build(replace(shape, d_model=width)) for part in plan.position)
        self.layers = nn.ModuleList(_build_layers(plan))
        self.final_norm = nn.Identity() if plan.final_norm is None else plan.final_norm.build(shape)
        self.final_dropout = Dropout(plan.final_dropout)
        self._stack_parts: list[Positioned] = list(self.position)  # type: ignore[arg-type]
        self._kinds = [self._kind(plan, index) for index in range(len(plan.layers))]
        self._order = plan.order
        self._without = {name: plan.without(name) for name in ("padding", "packing")}
        self._moves = any(getattr(part, "moves", False) for part in self.modules())
        self._skips_padding = any(getattr(part, "skips_padding", False) for part in self.position)

    def forward(self, call: Call) -> Tensor:
        """[batch time] ids or [batch time width] vectors -> hidden states [batch time d_model]."""
        self._check_padding(call)
        contexts = self._contexts(call)
        x = self._embed(call, contexts[0])
        states = [None] * len(self._order) if call.state is None else call.state.layers
        for layer, kind, state in zip(self.layers, self._order, states, strict=True):
            context = contexts[kind]
            if self._kinds[kind].with_weights:
                placement = Placement(layer.position, context.position.query, context.position.key)  # type: ignore[arg-type]
                context = replace(context, position=placement)
            x = layer(x, context, state)
        out: Tensor = self.final_dropout(self.final_norm(x))
        return out

    def _check_padding(self, call: Call) -> None:
        """Raise UsageError for padding or packed texts where some part would look at them as if they were real."""
        if (call.real is not None or call.memory_real is not None) and self._without["padding"]:
            lacking = self._without["padding"][0]
            raise UsageError(f"{lacking} cannot leave padding out; give texts of one length, and no attention_mask")
        if call.segments is not None and self._without["packing"]:
            raise UsageError(f"{self._without['packing'][0]} cannot keep packed texts apart; give no segment_ids")

    def _embed(self, call: Call, context: Context) -> Tensor:
        placement = Placement(self._stack_parts, context.position.query, context.position.key)
        if self.embedding is not None:
            out: Tensor = self.embedding(call.inputs, placement, call.vectors)
            return out
        added = placement.embed()
        return call.tokens if added is None else call.tokens + added

    def _contexts(self, call: Call) -> list[Context]:
        """One context for each distinct layer; equal rules and positions are made once."""
        span, query, key, real, segments = self._facts(call)
        memory = _memory(call, span, query)
        stack_position = Placement(self._stack_parts, query, key)
        contexts: list[Context] = []
        for index, kind in enumerate(self._kinds):
            if kind.twin == index:
                mask = Visibility(kind.rules, span, call.inputs, real, segments)
            else:
                mask = contexts[kind.twin].mask
            placement = stack_position if kind.position is None else Placement(kind.position, query, key)
            contexts.append(Context(mask, placement, None, None, memory, call.inputs, call.collector))
        return contexts

    def _kind(self, plan: StackPlan, index: int) -> Kind:
        layer = plan.layers[index]
        rules = [rule.build(plan.shape(plan=layer)) for rule in layer.mask]
        twin = next(
            i for i, other in enumerate(plan.layers) if (other.mask, other.causal) == (layer.mask, layer.causal)
        )
        if layer.position is None:
            return Kind(rules, twin)
        first: nn.ModuleList = self.layers[plan.order.index(index)].position  # type: ignore[assignment]
        with_weights = next(first.parameters(), None) is not None
        return Kind(rules, twin, None if with_weights else list(first), with_weights)  # type: ignore[arg-type]

    def _facts(self, call: Call) -> tuple[Span, Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
        """Places, positions of queries and keys, padding and segments, those of a decode state's past included."""
        device, count = call.tokens.device, call.tokens.shape[1]
        state = call.state
        past = 0 if state is None else state.length
        positions = call.positions
        if positions is None:
            positions = torch.arange(past, past + count, device=device)[None]
            if self._skips_padding and call.real is not None:
                positions = (call.real.cumsum(dim=1) * call.real - 1)[:, -count:]
        if state is None:
            segments = None if call.segments is None else (call.segments, call.segments)
            if self._moves and call.real is not None:
                positions = positions * call.real  # the places of padding do not make a text longer
            return Span(count, count, 0, device), positions, positions, call.real, segments
        state.extend(positions, call.real, call.segments)
        segments = None
        if state.segments is not None:
            segments = state.segments[:, past:], state.segments
        keys = positions if state.positions is None else state.positions
        if self._moves and state.real is not None:
            positions, keys = positions * state.real[:, past:], keys * state.real
        return Span(count, past + count, past, device), positions, keys, state.real, segments

    @property
    def caches(self) -> bool:
        """Whether tokens can be decoded a few a call: nothing sees the future, and every sublayer keeps its past."""
        sublayers = (sublayer for layer in self.plan.layers for sublayer in layer.sublayers)
        return self.plan.causal and all("cache" in sublayer.config.part.capabilities for sublayer in sublayers)

    def new_state(self) -> DecodeState:
        """An empty decode state of this stack; raises UsageError where the past would change with the future."""
        if not self.caches:
            parts = {sublayer.config.part for layer in self.plan.layers for sublayer in layer.sublayers}
            without = [part.part_name for part in parts if "cache" not in part.capabilities]
            why = f"'{sorted(without)[0]}' keeps no past" if without else "its tokens see those behind them"
            raise UsageError(f"this {self.plan.side} cannot decode from a state: {why}; compute the whole text instead")
        return DecodeState([layer.new_state() for layer in self.layers])  # type: ignore[operator]


def _memory(call: Call, span: Span, query: Tensor) -> Context | None:
    """The nested context of cross-attention: its own source, padding and (no) positions."""
    if call.memory is None:
        return None
    length = call.memory.shape[1]
    mask = Visibility((), Span(span.queries, length, 0, span.device), call.inputs, call.memory_real)
    key = torch.arange(length, device=span.device)[None]
    return Context(mask, Placement((), query, key), None, call.memory, None, call.inputs, call.collector)


def _build_layers(plan: StackPlan) -> list[Layer]:
    """The layers in order; layers and sublayers that share their weights are one module."""
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
            if getattr(sublayer.config, "shared", False):
                layer.add_module(sublayer.name, parts.setdefault((entry, sublayer.name), getattr(layer, sublayer.name)))
        layers.append(layer)
    return layers
