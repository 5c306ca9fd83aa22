"""Batches for inference: texts of similar length together, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# padded tokens of a batch: on a processor as few as stay in its caches, on an accelerator enough to fill it
CPU_TOKENS, ACCELERATOR_TOKENS = 1024, 32768


def by_length(lengths: Sequence[int], device: str, size: int | None = None) -> Iterator[list[int]]:
    """Batches of indices, the longest texts first (what does not fit into memory shows at once).

    A batch has at most so many places as suit a device of that type, or a single text, and at most `size` texts.
    """
    tokens = CPU_TOKENS if device == "cpu" else ACCELERATOR_TOKENS
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        rows = max(1, tokens // max(1, lengths[order[start]]))
        rows = rows if size is None else min(rows, size)
        yield order[start : start + rows]
        start += rows
