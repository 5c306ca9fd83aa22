"""Base of the attentions, and the decode state of those that keep keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.components.sublayer import Sublayer


class KeyValueState:
    """Keys and values seen so far, in buffers that grow by doubling: [rows heads capacity dim]."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add [rows heads new dim] and give all so far, [rows heads length dim]."""
        end = self.length + key.shape[2]
        self._keys = _room(self._keys, key, self.length, end)
        self._values = _room(self._values, value, self.length, end)
        self._keys[:, :, self.length : end] = key
        self._values[:, :, self.length : end] = value
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def stored(self) -> tuple[Tensor, Tensor] | None:
        """All so far, or None when nothing was appended yet (cross-attention keeps its memory's once)."""
        if self._keys is None or self._values is None:
            return None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i, for beams and finished sequences; `rows` is [new_rows]."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def bytes(self) -> int:
        """Bytes of the keys and values held, room to grow not counted."""
        held = self.stored()
        return 0 if held is None else sum(part.numel() * part.element_size() for part in held)


def _room(buffer: Tensor | None, new: Tensor, used: int, needed: int) -> Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    rows, heads, _, dim = new.shape
    capacity = needed if buffer is None else max(needed, 2 * used)
    larger = torch.empty(rows, heads, capacity, dim, dtype=new.dtype, device=new.device)
    if buffer is not None:
        larger[:, :, :used] = buffer[:, :, :used]
    return larger


class Attention(Sublayer):
    """Attends to its own input, or to `context.source` when that is given: self- and cross-attention are one part."""

    def new_state(self) -> KeyValueState | None:
        """Room for keys and values, where the part says that it can decode from a cache."""
        return KeyValueState() if "cache" in self.capabilities else None
