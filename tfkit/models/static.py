"""Decode state of fixed shapes, with which one graph computes every step, and decode state for traced graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from tfkit.components.attention.base import KeyValueState
from tfkit.core.blame import compiling
from tfkit.core.context import Collector, Span
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.models.base import Model
from tfkit.models.call import Call, DecodeState
from tfkit.models.stack import Stack

ROUNDED = 64  # capacities are multiples of this, so that texts of similar length share a graph


class StaticKeys(KeyValueState):
    """Keys and values [rows heads capacity dim] of one attention; new ones are written at `at` [1]."""

    def __init__(self, held: KeyValueState, capacity: int, at: Tensor) -> None:
        super().__init__()
        self.buffers = tuple([_extended(part, 2, capacity) for part in held.stored() or ()])
        self.at = at

    @property
    def length(self) -> int:
        return self.buffers[0].shape[2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        buffers = (self.buffers[0], self.buffers[1])
        for buffer, new in zip(buffers, (key, value), strict=True):
            buffer.index_copy_(2, self.at, new)
        return buffers

    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


class StaticState(DecodeState):
    """A decode state that has read a prompt, with room for `capacity` tokens; each step reads one.

    The mask hides places that are not written yet. The state can be neither reordered nor rewound.
    """

    forgets = False
    fixed = False  # True after `fix_addresses`

    def __init__(self, state: DecodeState, capacity: int, most: int | None = None) -> None:
        """`most` is the number of positions of the stack, if limited; rows that have ended stay at the last one."""
        super().__init__([], state._names, state._memories)
        capacity = -(-capacity // ROUNDED) * ROUNDED
        positions = state.positions
        if positions is None:
            raise UsageError("a static cache needs a state that has read a prompt")
        self.at = torch.full((1,), state.length, device=positions.device)
        more = torch.arange(1, capacity - state.length + 1, device=positions.device)
        after = positions[:, -1:] + more  # [rows|1 capacity-length]
        after = after if most is None else after.clamp(max=most - 1)
        real = None if state.real is None else _extended(state.real, 1, capacity, 1)
        self.given = torch.cat((positions, after), dim=1), real
        self.length = self.known = capacity
        self.memory, self.memory_real = state.memory, state.memory_real
        self.extra: Mapping[str, Tensor] = {}  # extra inputs of each step
        for layer, memories in zip(state.layers, self._memories, strict=True):
            self.layers.append({name: self._fixed(one, name in memories) for name, one in layer.items()})

    def _fixed(self, held: object, of_memory: bool) -> object:
        """Return the state of a part with fixed shapes; recurrences and memories have them anyway."""
        if isinstance(held, KeyValueState) and not of_memory:
            return StaticKeys(held, self.length, self.at)
        return held

    def fix_addresses(self) -> None:
        """Declare that steps write to tensors in place, which lets a CUDA graph update them."""
        from torch._dynamo import mark_static_address  # takes a second to import

        keys = [one for layer in self.layers for one in layer.values() if isinstance(one, StaticKeys)]
        for tensor in (self.at, *(buffer for one in keys for buffer in one.buffers)):
            mark_static_address(tensor, guard=False)
        self.fixed = True

    def span(self, queries: int, device: torch.device) -> Span:
        return Span(queries, self.length, self.length, device, at=self.at)

    def extend(
        self, positions: Tensor, real: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return *self.given, segments

    def reorder(self, rows: Tensor) -> None:
        raise UsageError("a static cache cannot be reordered")

    def check_rewind(self, length: int) -> None:
        raise UsageError("a static cache cannot be rewound")


def _extended(part: Tensor, axis: int, size: int, fill: int = 0) -> Tensor:
    """Copy a tensor into a new one of `size` along `axis`, filled up with `fill`."""
    shape = [*part.shape[:axis], size, *part.shape[axis + 1 :]]
    whole = part.new_full(shape, fill)
    whole.narrow(axis, 0, part.shape[axis]).copy_(part)
    return whole


Step = Callable[[Model, StaticState, Tensor], Tensor]  # (model, state, ids [rows 1]) -> logits [rows 1 vocab]


def decode_step(model: Model, state: StaticState, ids: Tensor) -> Tensor:
    """Read one token of each row, [rows 1], and return the logits of the next one, [rows 1 vocab]."""
    positions = state.given[0].index_select(1, state.at)  # [rows|1 1]
    stack: Stack = model.stack(model.blueprint.last.side)
    inputs = Inputs(ids, extra=state.extra)
    hidden = stack(Call(inputs, None, positions, None, state.memory, state.memory_real, state, Collector()))
    logits: Tensor = model.head_of_last(hidden)
    state.at.add_(1)
    return logits


def compiled_step(model: Model, state: StaticState, ids: Tensor) -> Tensor:
    """Compute `decode_step` in a compiled graph, on CUDA captured as a CUDA graph."""
    if not state.fixed:
        state.fix_addresses()
    with compiling("generate.compile"):
        logits: Tensor = _compiled()(model, state, ids)
    return logits


@functools.cache
def _compiled() -> Step:
    step: Step = torch.compile(decode_step, fullgraph=True, mode="reduce-overhead")
    return step


def static_fault(stack: Stack) -> str | None:
    """Return the reason why a stack cannot decode from a static cache, or None."""
    if not stack.caches:
        return stack.keeps_nothing
    if stack.moves:
        return "its rotations depend on the length of the text, so cached keys change"
    for kind in stack.kinds:
        for rule in kind.rules:
            if rule.opens:
                return f"mask '{rule.part_name}' shows places that are not written yet"
    return None


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
