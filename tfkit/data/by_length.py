"""Inference batches of similar length, to minimize padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# padded tokens per batch: small enough for CPU caches, large enough to saturate an accelerator
CPU_TOKENS, ACCELERATOR_TOKENS = 1024, 32768


def by_length(lengths: Sequence[int], device: str, size: int | None = None) -> Iterator[list[int]]:
    """Yield batches of indices, longest texts first, so that an out-of-memory error occurs at once.

    A batch has at most `size` texts and, unless it is a single text, at most as many padded tokens as the device type
    allows.
    """
    tokens = CPU_TOKENS if device == "cpu" else ACCELERATOR_TOKENS
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        rows = max(1, tokens // max(1, lengths[order[start]]))
        rows = rows if size is None else min(rows, size)
        yield order[start : start + rows]
        start += rows
