"""A layer: sublayers and norms, connected by the residual layout; recomputation, and bottlenecks between stacks."""

# Axes: batch, time, d_model.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tfkit.components.residual import Branch
from tfkit.core.blueprint import LayerPlan, StackPlan
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.core.skeleton import draw_for
from tfkit.core.store import Stores, of_config
from tfkit.functional.dropout import Dropout, drawing, draws_here

# decode states of one layer, by the name of the sublayer
LayerState = dict[str, Any]


class Layer(nn.Module):
    """Layer built from a LayerPlan, with sublayers and norms as submodules named as in the recipe."""

    def __init__(self, plan: LayerPlan, stack: StackPlan, index: int) -> None:
        super().__init__()
        shape = stack.shape(index, plan)
        self.residual = plan.residual.build(shape)
        self.branch_scale = plan.residual.branch_scale
        self.init_gain = self.residual.init_gain(plan.residual, shape)
        self.names = tuple(sublayer.name for sublayer in plan.sublayers)
        self.reads_memory = frozenset(sublayer.name for sublayer in plan.sublayers if sublayer.memory)
        for sublayer in plan.sublayers:
            draw_for(f"{stack.side}.layers.{index}.{sublayer.name}")
            own = stack.shape(index, plan, shared=True) if sublayer.config.shared else shape
            self.add_module(sublayer.name, sublayer.config.build(stack.source_shape(own, sublayer)))
        norms = {name: config for name, _, config in plan.norms()}
        for name, config in norms.items():
            self.add_module(name, nn.Identity() if config is None else config.build(shape))
        self.norm_names = tuple(norms)
        self.norms_with_store = [name for name, one in norms.items() if one and of_config(one, shape) != Stores()]
        self.position = nn.ModuleList(part.build(shape) for part in plan.position or ())
        self.dropout = Dropout(plan.dropout)

    def forward(self, x: Tensor, context: Context, state: LayerState | None = None) -> Tensor:
        """Map x to the same shape, or one with more streams; `state` contains the decode states by sublayer."""
        out: Tensor = self.residual(x, self._branches(context, state or {}))
        return out

    def _branches(self, context: Context, state: Mapping[str, Any]) -> list[Branch]:
        parts: Mapping[str, Any] = self._modules
        if self.norms_with_store:
            parts = {**parts, **{name: partial(parts[name], context=context) for name in self.norms_with_store}}
        branches = []
        for name in self.names:
            seen = context.memory if name in self.reads_memory else context
            if seen is None:
                raise UsageError(f"{name} requires a memory to attend to; pass encoder_hidden_states")
            if context.collector.watch:
                seen = replace(seen, collector=context.collector.at(name))
            own = state.get(name)
            seen = seen if own is None and seen.state is None else seen.with_state(own)
            branches.append(Branch(name, parts[name], seen, parts["dropout"], parts, self.branch_scale))
        return branches

    def new_state(self, keeps: int | None = None) -> LayerState:
        """Return empty decode states; self-attention keeps the last `keeps` tokens (None: all)."""
        states = {name: getattr(self, name).new_state() for name in self.names}
        if keeps is not None:
            for name in states.keys() - self.reads_memory:
                if hasattr(states[name], "keep_last"):
                    states[name].keep_last(keeps)
        return {name: state for name, state in states.items() if state is not None}

    @property
    def forgets(self) -> bool:
        """True if the states of all sublayers with masks can drop tokens that are no longer visible."""
        parts = [getattr(self, name) for name in self.names if name not in self.reads_memory]
        states = [part.new_state() for part in parts if "masks" in part.capabilities and "cache" in part.capabilities]
        return all(state is None or hasattr(state, "keep_last") for state in states)


class LastState:
    """Final states of a stack's recurrences, concatenated over layers into a memory [batch 1 width]."""

    def __init__(self, plan: StackPlan) -> None:
        self.places: list[tuple[int, str]] = []
        self.widths: list[tuple[int, ...]] = []
        for layer, kind in enumerate(plan.order):
            for sublayer in plan.layers[kind].sublayers:
                if widths := sublayer.config.state_widths(plan.shape(layer, plan.layers[kind])):
                    self.places.append((layer, sublayer.name))
                    self.widths.append(widths)
        self.width = sum(map(sum, self.widths))

    def new(self, layers: Sequence[Layer]) -> list[LayerState]:
        """Create empty states for the recurrences of each layer."""
        states: list[LayerState] = [{} for _ in layers]
        for layer, name in self.places:
            states[layer][name] = getattr(layers[layer], name).new_state()
        return states

    def gathered(self, states: Sequence[LayerState]) -> Tensor:
        """Concatenate the states into a memory [batch 1 width]."""
        parts = [part for layer, name in self.places for part in states[layer][name].parts]  # [1 batch part] each
        return rearrange(torch.cat(parts, dim=-1), "1 batch width -> batch 1 width")

    def begin(self, states: Sequence[LayerState], memory: Tensor | None) -> None:
        """Initialize empty states from a memory [batch 1 width]. Raise UsageError for another shape."""
        if memory is None or memory.dim() != 3 or memory.shape[1:] != (1, self.width):
            got = "none" if memory is None else f"shape {list(memory.shape)}"
            raise UsageError(f"encoder_hidden_states must be last states [batch 1 {self.width}], got {got}")
        vectors = rearrange(memory, "batch 1 width -> 1 batch width")
        each = vectors.split_with_sizes([sum(widths) for widths in self.widths], dim=-1)
        for (layer, name), vector, widths in zip(self.places, each, self.widths, strict=True):
            state = states[layer][name]
            if not state.parts:
                parts = vector.split_with_sizes(widths, dim=-1)  # [1 batch part] each
                state.parts = tuple(part.contiguous() for part in parts)


def recomputed(layer: nn.Module, x: Tensor, context: Context) -> Tensor:
    """Call a layer, storing only `x`; the backward pass runs the layer again.

    The second run repeats the dropout draws and starts from the context's caches and store as they are now, so that it
    computes equal tensors. Its observations and losses are discarded.
    """
    draws, start, runs = draws_here(), context.apart(), count()

    def run(x: Tensor) -> Tensor:
        if next(runs) == 0:
            out: Tensor = layer(x, context)
            return out
        with drawing(None if draws is None else replace(draws)):
            out = layer(x, start.apart())
            return out

    result: Tensor = checkpoint(run, x, use_reentrant=False)
    return result
