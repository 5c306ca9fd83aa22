"""The decode state of a whole stack: it lives outside the modules and is handed over layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tfkit.models.layer import LayerState


@dataclass
class DecodeState:
    """What decoding keeps between calls: per layer the sublayers' states, and the facts of the tokens seen so far."""

    layers: list[LayerState]
    length: int = 0
    positions: Tensor | None = None  # [rows length]
    real: Tensor | None = None  # [rows length], None while no call gave padding
    segments: Tensor | None = None  # [rows length]
    memory: Tensor | None = None  # [rows source d_model] of the encoder
    memory_real: Tensor | None = None

    def extend(self, positions: Tensor, real: Tensor | None, segments: Tensor | None) -> None:
        """Take in the facts of new tokens, each [rows|1 new]."""
        new = positions.shape[1]
        self.positions = _joined(self.positions, positions)
        if real is not None and real.shape[1] == self.length + new:
            self.real = real  # the call gave the mask of everything so far
        elif real is not None or self.real is not None:
            real = torch.ones_like(positions, dtype=torch.bool) if real is None else real
            past = self.real if self.real is not None else real.new_ones(real.shape[0], self.length)
            self.real = _joined(past, real)
        if segments is not None:
            self.segments = _joined(self.segments, segments)
        self.length += new

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i everywhere: for beams, and to drop finished sequences. `rows` is [new_rows]."""
        for name in ("positions", "real", "segments", "memory", "memory_real"):
            value = getattr(self, name)
            if value is not None and value.shape[0] > 1:
                setattr(self, name, value.index_select(0, rows))
        for layer in self.layers:
            for state in layer.values():
                state.reorder(rows)

    def bytes(self) -> int:
        """Bytes that the layers' states hold."""
        return sum(state.bytes() for layer in self.layers for state in layer.values())


def _joined(past: Tensor | None, new: Tensor) -> Tensor:
    if past is None:
        return new
    rows = max(past.shape[0], new.shape[0])
    return torch.cat((past.expand(rows, -1), new.expand(rows, -1)), dim=1)
