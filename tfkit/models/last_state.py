"""Bottleneck between recurrences: the encoder's final states form one vector that initializes the decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from tfkit.core.blueprint import StackPlan
from tfkit.core.errors import UsageError
from tfkit.models.layer import Layer, LayerState


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
