"""Dropout with 16 random bits per element: the same distribution in half the time on a CPU.

Within `drawing`, an element's draw is a function of a key, the call, and its place in the whole batch: a batch that is
cut over processes draws what it draws in one piece.
"""

# Axes: any. Each forward maps [...] to the same shape.

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.core.errors import UsageError

LEVELS = 1 << 16


@dataclass
class Draws:
    """Key of a batch and the place of a piece in it: its first row and target, and the numbers of both."""

    key: tuple[int, ...]
    row: int = 0
    rows: int = 1
    target: int = 0
    targets: int = 0
    calls: int = 0

    def first(self, x: Tensor) -> int:
        """Place of the first element of `x` in the same tensor of the whole batch."""
        if x.dim() == 2 and len(x) == self.targets:  # [target width], chosen from all positions
            return self.target * x.shape[1]
        if self.row and x.numel() % self.rows:
            raise UsageError(f"dropout of shape {list(x.shape)} cannot be cut by rows of a batch; use one process")
        return self.row * (x.numel() // self.rows)

    def next(self) -> int:
        """Key of the next call, as a signed 64-bit integer."""
        self.calls += 1
        text = repr((*self.key, self.calls)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


_DRAWS: ContextVar[Draws | None] = ContextVar("draws of this thread", default=None)


@contextlib.contextmanager
def drawing(draws: Draws | None) -> Iterator[None]:
    """Draw by `draws` within the block and this thread, or by torch's generator if None."""
    token = _DRAWS.set(draws)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def draws_here() -> Draws | None:
    """Return a copy of the draws of this thread as they are now, to repeat them."""
    draws = _DRAWS.get()
    return None if draws is None else replace(draws)


def is_drawing() -> bool:
    """True within `drawing`, except in a compiled graph, which would keep the key of its first call."""
    return not torch.compiler.is_compiling() and _DRAWS.get() is not None


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate` (to 1/65,536) and scale the others to keep the mean."""
    if rate == 0:
        return x
    if torch.compiler.is_compiling():
        return F.dropout(x, rate)
    count, skip, draws = x.numel(), 0, _DRAWS.get()
    # one 64-bit draw serves four elements
    if draws is not None:
        start, skip = divmod(draws.first(x), 4)
        words = split_mix(draws.next(), start, (skip + count + 3) // 4, x.device)
    elif x.device.type != "cpu":
        return F.dropout(x, rate)
    else:
        words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(rate * LEVELS) - LEVELS // 2
    keep = words.view(torch.int16)[skip : skip + count].view(x.shape) >= threshold
    return x * keep.to(x.dtype).mul_(1 / (1 - rate))


def split_mix(key: int, start: int, count: int, device: torch.device) -> Tensor:
    """Words `start` to `start + count` of SplitMix64 (Steele et al. 2014), each computed from its place alone."""
    x = torch.arange(start + 1, start + count + 1, device=device).mul_(_signed(0x9E3779B97F4A7C15)).add_(key)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x.bitwise_xor_(_right(x, bits)).mul_(_signed(factor))
    return x.bitwise_xor_(_right(x, 31))


def _right(x: Tensor, bits: int) -> Tensor:
    """Shift to the right without the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class Dropout(nn.Module):
    """Dropout in training mode, identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        return f"{self.rate}"
