"""Decode state of a stack, stored outside the modules and passed to each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.context import Span
from tfkit.core.errors import UsageError
from tfkit.functional.growing import GrowingBuffers
from tfkit.models.layer import LayerState


class DecodeState:
    """Data kept between decoding calls: the states of all sublayers, and properties of the tokens so far.

    For layer i, `names[i]` are the names of parts for messages, and `memories[i]` the sublayers that attend to the
    memory, whose states do not grow.
    """

    forgets = True  # True if keys that are no longer visible may be dropped

    def __init__(
        self, layers: list[LayerState], names: Sequence[dict[str, str]] = (), memories: Sequence[frozenset[str]] = ()
    ) -> None:
        self.layers = layers
        self.length = 0
        self.known = 0  # text length of the last call, including tokens rewound since
        self.memory: Tensor | None = None  # output of the encoder, [rows source d_model]
        self.memory_real: Tensor | None = None
        self.sources: Tensor | None = None  # [rows], rows with equal numbers have the same source; None if unknown
        self._names = names or [{name: name for name in layer} for layer in layers]
        self._memories = memories or [frozenset()] * len(layers)
        self._facts: dict[str, GrowingBuffers] = {}

    @property
    def positions(self) -> Tensor | None:
        """Positions of the tokens so far, [rows|1 length]."""
        return self._fact("positions")

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens so far, [rows length]; None if there is no padding."""
        return self._fact("real")

    @property
    def segments(self) -> Tensor | None:
        """Segment number of each token so far, [rows length]."""
        return self._fact("segments")

    def _fact(self, name: str) -> Tensor | None:
        return self._facts[name].held()[0] if name in self._facts else None

    def extend(
        self, positions: Tensor, real: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Append the properties of new tokens, each [rows|1 new]; return the properties of all tokens so far."""
        new = positions.shape[1]
        self._add("positions", positions)
        if real is not None and real.shape[1] == self.length + new:
            self._facts.pop("real", None)  # this mask also covers the past
            self._add("real", real)
        elif real is not None or "real" in self._facts:
            real = torch.ones_like(positions, dtype=torch.bool) if real is None else real
            if "real" not in self._facts and self.length:
                self._add("real", real.new_ones(real.shape[0], self.length))
            self._add("real", real)
        if segments is not None:
            self._add("segments", segments)
        self.length += new
        known = self.positions
        return positions if known is None else known, self.real, self.segments

    def real_with(self, real: Tensor | None, new: int) -> Tensor | None:
        """Return the mask of all tokens so far and `new` ones, whose mask may also cover the past."""
        past = self.real
        if real is None:
            return None if past is None else F.pad(past, (0, new), value=True)
        if real.shape[1] > new or not self.length:
            return real
        past = real.new_ones(len(real), self.length) if past is None else past.expand(len(real), -1)
        return torch.cat((past, real), dim=1)

    def span(self, queries: int, device: torch.device) -> Span:
        """Return the span of the next tokens."""
        return Span(queries, self.length + queries, self.length, device)

    def take_back(self, length: int) -> None:
        """Truncate the tokens' properties to `length`; the states of layers are unchanged."""
        for held in self._facts.values():
            held.rewind(length)
        self.length = length

    def _add(self, name: str, new: Tensor) -> None:
        if name not in self._facts:
            self._facts[name] = GrowingBuffers(axis=1)
        held = self._facts[name]
        if held.rows == 1 < new.shape[0]:
            held.reorder(torch.zeros(new.shape[0], dtype=torch.long, device=new.device))
        held.append(new.expand(max(held.rows, new.shape[0]), -1))

    def reserve(self, length: int) -> None:
        """Reserve memory for a text of this length."""
        for _, state in self._of_text():
            if hasattr(state, "reserve"):
                state.reserve(length)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`, to reorder beams or drop finished sequences; `rows` is [new_rows]."""
        for held in self._facts.values():
            if held.rows > 1:
                held.reorder(rows)
        for _, state in self._of_text():
            state.reorder(rows)
        sources = None if self.sources is None else self.sources.index_select(0, rows)
        if sources is None or self.sources is None or not torch.equal(sources, self.sources):
            self._reorder_memory(rows)
        self.sources = sources

    def _reorder_memory(self, rows: Tensor) -> None:
        if self.memory is not None:
            self.memory = self.memory.index_select(0, rows)
        if self.memory_real is not None and self.memory_real.shape[0] > 1:
            self.memory_real = self.memory_real.index_select(0, rows)
        for layer, memories in zip(self.layers, self._memories, strict=True):
            for name in memories & layer.keys():
                layer[name].reorder(rows)

    def check_rewind(self, length: int) -> None:
        """Raise UsageError if a part cannot rewind to `length` tokens."""
        for name, state in self._of_text():
            if not hasattr(state, "rewind"):
                raise UsageError(f"the state of {name} cannot be rewound")
            earliest = state.earliest() if hasattr(state, "earliest") else 0
            if length < earliest:
                raise UsageError(
                    f"{name} has dropped keys beyond the reach of its mask: its state of {self.length} tokens can be "
                    f"rewound to {earliest} tokens or more, not to {length}"
                )

    def rewind(self, length: int) -> None:
        """Truncate to the first `length` tokens. Raise UsageError and change nothing if a part cannot rewind."""
        if not 0 <= length <= self.length:
            raise UsageError(f"a state of {self.length} tokens cannot be rewound to {length}")
        self.check_rewind(length)
        for _, state in self._of_text():
            state.rewind(length)
        self.take_back(length)

    def bytes(self) -> int:
        """Return the size of the layers' states in bytes."""
        return sum(state.bytes() for layer in self.layers for state in layer.values())

    def _of_text(self) -> Iterator[tuple[str, Any]]:
        """Yield the states that grow with the text, with the names of their parts; skip attention to the memory."""
        for layer, names, memories in zip(self.layers, self._names, self._memories, strict=True):
            yield from ((names[name], state) for name, state in layer.items() if name not in memories)
