"""Base of the attentions, and the decode state of those that keep keys and values."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.sublayer import Sublayer
from tfkit.core import component
from tfkit.core.slots import AttentionFacts
from tfkit.functional.growing import GrowingBuffers


class KeyValueState:
    """Keys and values seen so far, [rows heads length dim], or the last of them where a mask hides all others."""

    def __init__(self) -> None:
        self._held = GrowingBuffers(axis=2)

    @property
    def length(self) -> int:
        """How many tokens were read, including those whose keys and values are no longer kept."""
        return self._held.length

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append [rows heads new dim] and return all that the new tokens may attend to, themselves included.

        Those are the keys and values at the places of `context.mask.span.key()`.
        """
        keys, values = self._held.append(key, value)
        return keys, values

    def stored(self) -> tuple[Tensor, Tensor] | None:
        """All so far, or None when nothing was appended yet (cross-attention keeps its memory's once)."""
        held = self._held.held()
        return (held[0], held[1]) if held else None

    def keep_last(self, count: int) -> None:
        """Declare, before anything is read, that no token attends to more than the `count` tokens before it."""
        self._held.keeps = count

    def reserve(self, length: int) -> None:
        """Allocate memory for a text of that length at once."""
        self._held.reserve(length)

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i, for beams and finished sequences; `rows` is [new_rows]."""
        self._held.reorder(rows)

    def earliest(self) -> int:
        """The shortest length that `rewind` can go back to; tokens before a window are no longer kept."""
        return self._held.earliest()

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` keys and values; `length` is `earliest()` or more."""
        self._held.rewind(length)

    def bytes(self) -> int:
        """Bytes of the keys and values that later tokens may attend to, without memory allocated in advance."""
        return self._held.bytes()


class Attention(Sublayer, AttentionFacts):
    """Attends to its own input, or to `context.source` when that is given: self- and cross-attention are one part."""

    @classmethod
    def able(cls, config: component.Config | None = None) -> frozenset[str]:
        """What it declares; the keys and values that it keeps can be taken back too."""
        able = super().able(config)
        return able | {"rewind"} if cls.new_state is Attention.new_state else able

    def new_state(self) -> KeyValueState | None:
        """Room for keys and values, where the part says that it can decode from a cache."""
        return KeyValueState() if "cache" in self.capabilities else None
