"""Base class of attentions, and the cache of keys and values for decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from tfkit.components.sublayer import Sublayer, check_heads
from tfkit.core import component
from tfkit.core.component import Problem, Shape
from tfkit.core.options import Bias, Heads, Width, check_bias
from tfkit.core.slots import AttentionFacts
from tfkit.functional.view import GrowingBuffers


class KeyValueState:
    """Cached keys and values, [rows heads length dim]; only the last ones if a mask hides the rest."""

    def __init__(self) -> None:
        self._held = GrowingBuffers(axis=2)

    @property
    def length(self) -> int:
        """Number of tokens read, including those no longer cached."""
        return self._held.length

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append [rows heads new dim]. Return all keys and values visible to the new tokens, new ones included.

        The positions of the returned keys are `context.mask.span.key()`.
        """
        keys, values = self._held.append(key, value)
        return keys, values

    def stored(self) -> tuple[Tensor, Tensor] | None:
        """Return all keys and values, or None if nothing was appended; cross-attention appends only once."""
        held = self._held.held()
        return (held[0], held[1]) if held else None

    def keep_last(self, count: int) -> None:
        """Limit the cache to `count` tokens before the current one; call before the first read."""
        self._held.keeps = count

    def reserve(self, length: int) -> None:
        self._held.reserve(length)

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i, for beams and finished sequences; `rows` is [new_rows]."""
        self._held.reorder(rows)

    def earliest(self) -> int:
        """Return the shortest length that `rewind` supports; tokens before a window are dropped."""
        return self._held.earliest()

    def rewind(self, length: int) -> None:
        """Truncate to the first `length` keys and values; `length` is at least `earliest()`."""
        self._held.rewind(length)

    def bytes(self) -> int:
        """Return the size of the visible keys and values in bytes, without reserved memory."""
        return self._held.bytes()


class Attention(Sublayer, AttentionFacts):
    """Attends to `context.source` if set (cross-attention), else to its own input (self-attention)."""

    @classmethod
    def able(cls, config: component.Config | None = None) -> frozenset[str]:
        """Return the declared capabilities, with "rewind" for the default cache."""
        able = super().able(config)
        return able | {"rewind"} if cls.new_state is Attention.new_state else able

    def new_state(self) -> KeyValueState | None:
        """Return an empty cache if the part can decode from one."""
        return KeyValueState() if "cache" in self.capabilities else None


class PlainHeadsConfig(Attention.Config):
    """Options of attentions with equal heads and `projections`."""

    num_heads: Heads = Field(description="heads; 1 is single-head attention")
    head_dim: Width | None = Field(None, description="width of a head; none: d_model / num_heads")
    bias: Bias = Field(True, description="biases: all, none, or a list of projections")

    projections: ClassVar[tuple[str, ...]] = ("query", "key", "value", "output")

    def check(self, shape: Shape) -> Iterator[Problem]:
        yield from check_heads(self.num_heads, self.head_dim, shape.d_model)
        yield from check_bias(self.bias, self.projections)

    def width(self, shape: Shape) -> int:
        return self.head_dim or shape.d_model // self.num_heads
