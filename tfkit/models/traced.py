"""Decode state for traced graphs, in which keys and values are inputs and outputs and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tfkit.components.attention.base import KeyValueState
from tfkit.models.stack import Stack
from tfkit.models.state import DecodeState

KINDS = ("key", "value")


class GivenPast(KeyValueState):
    """Keys and values [batch heads past dim] of one attention; they grow for self-attention, not for a memory."""

    def __init__(self, both: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.both = both

    @property
    def length(self) -> int:
        return 0 if self.both is None else self.both[0].shape[2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.both is not None:
            key, value = (torch.cat(pair, dim=2) for pair in zip(self.both, (key, value), strict=True))
        self.both = key, value
        return key, value

    def stored(self) -> tuple[Tensor, Tensor] | None:
        return self.both


class TracedState(DecodeState):
    """Decode state built from named tensors and the properties of all tokens so far."""

    forgets = False

    def __init__(
        self, stack: Stack, held: Mapping[str, Tensor], length: int, positions: Tensor, real: Tensor | None = None
    ) -> None:
        layers: list[dict[str, GivenPast]] = [{} for _ in stack.layers]
        for place in attentions(stack):
            index, _, name = place.partition(".")
            key, value = (held.get(f"{place}.{kind}") for kind in KINDS)
            layers[int(index)][name] = GivenPast(None if key is None or value is None else (key, value))
        super().__init__(layers)
        self.length = length
        self._given = positions, real

    def extend(
        self, positions: Tensor, real: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return *self._given, segments

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of all keys and values."""
        for index, layer in enumerate(self.layers):
            for name, past in layer.items():
                yield from zip((f"{index}.{name}.{kind}" for kind in KINDS), past.both or (), strict=False)


def attentions(stack: Stack) -> dict[str, bool]:
    """Map each attention with cached keys and values (`layer.name`) to True if it attends to a memory."""
    places = {}
    for index, layer in enumerate(stack.layers):
        for name, state in layer.new_state().items():  # type: ignore[operator]
            if isinstance(state, KeyValueState):
                places[f"{index}.{name}"] = name in layer.reads_memory  # type: ignore[operator]
    return places


def keeps_keys_alone(stack: Stack) -> bool:
    """True if the stack caches only keys and values, and positions do not depend on the text length."""
    states = [state for layer in stack.layers for state in layer.new_state().values()]  # type: ignore[operator]
    return stack.caches and not stack.moves and all(isinstance(state, KeyValueState) for state in states)
