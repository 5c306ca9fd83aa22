"""Batch planning: which examples form each batch, and in what order; texts grouped by length.

A plan is a pure function of (lengths, settings, seed, epoch). A run therefore resumes exactly from its epoch and batch
number, without a saved RNG state, and all processes of a distributed run compute the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import DataError, UsageError
from tfkit.recipe.settings.sections import Batch as BatchOptions

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


Indices = NDArray[np.int64]
Lengths = NDArray[np.integer]  # [examples] or [examples sides]
Batch = TypeVar("Batch")

_POOL = 64  # batches per pool whose examples are sorted by length: more batches reduce padding, fewer mix better
_PACK_POOL = 8192  # number of examples that are packed into rows at a time


def fitting(lengths: Lengths, longest: int) -> Indices:
    """Return the indices of examples with no side longer than `longest`.

    lengths: [examples] or [examples sides].
    """
    return np.flatnonzero(_widths(lengths) <= longest)


def plan(lengths: Lengths, config: BatchOptions, seed: int, epoch: int) -> list[Indices]:
    """Return the batches of one epoch as arrays of example indices; each example occurs once.

    lengths: [examples] or [examples sides]. Raise DataError if there are no examples or one is too long.
    """
    widths = _widths(lengths)
    _check(widths, config, min(config.tokens or 2**62, config.length or 2**62))
    order = _shuffled(len(widths), seed, epoch, 0)
    if config.by_length:
        order = _near_in_length(order, np.asarray(lengths).reshape(len(widths), -1), config)
    batches = _cut(order, widths, config)
    if not config.by_length:
        return batches
    return [batches[index] for index in _shuffled(len(batches), seed, epoch, 1)]


def plan_packed(
    lengths: Lengths, config: BatchOptions, seed: int, epoch: int, length: int | None = None
) -> list[list[list[int]]]:
    """Return the batches of one epoch as lists of rows, each the indices of the examples packed into it.

    A row has at most `length` tokens (default: `config.length`) on every side. Raise the same errors as `plan`, and
    UsageError if neither length is set.
    """
    room = length or config.length
    if room is None:
        raise UsageError("pack needs a row length; set data.batch.length or the model's max_length")
    widths = _widths(lengths)
    _check(widths, config, room)
    rows_at_once = config.size or (config.tokens or 0) // room
    if not rows_at_once:
        raise UsageError(f"a packed row of length {room} does not fit into a batch of {config.tokens} tokens")
    order = _shuffled(len(widths), seed, epoch, 0)
    rows: list[list[int]] = []
    for start in range(0, len(order), _PACK_POOL):
        rows += _pack(order[start : start + _PACK_POOL], widths, room)
    rows = [rows[index] for index in _shuffled(len(rows), seed, epoch, 1)]
    return [rows[start : start + rows_at_once] for start in range(0, len(rows), rows_at_once)]


class BatchOrder(Generic[Batch]):
    """Endless iterator over the batches of all epochs, resumable from `state`, the (epoch, batch) to yield next.

    `planner` returns the batches of an epoch: `BatchOrder(lambda epoch: plan(lengths, config, seed, epoch))`.
    """

    def __init__(self, planner: Callable[[int], Sequence[Batch]], epoch: int = 0, batch: int = 0) -> None:
        if epoch < 0 or batch < 0:
            raise UsageError(f"epoch and batch must not be negative, got epoch {epoch}, batch {batch}")
        self.planner = planner
        self._epoch, self._batch = epoch, batch

    @property
    def state(self) -> tuple[int, int]:
        """Epoch and index of the batch to yield next."""
        return self._epoch, self._batch

    def __iter__(self) -> Iterator[tuple[int, int, Batch]]:
        """Yield (epoch, batch, examples) from `state` on, advancing `state` before each yield."""
        while True:
            epoch = self._epoch
            batches = self.planner(epoch)
            if self._batch > len(batches) or not batches:
                raise DataError(
                    f"batch {self._batch} of epoch {epoch} comes next, but this data has only {len(batches)} "
                    "batches: the data or its settings have changed since the run started"
                )
            for index in range(self._batch, len(batches)):
                last = index + 1 == len(batches)
                self._epoch, self._batch = (epoch + 1, 0) if last else (epoch, index + 1)
                yield epoch, index, batches[index]
            if self._epoch == epoch:  # resumed exactly after the last batch
                self._epoch, self._batch = epoch + 1, 0


def padding_share(batches: Sequence[Indices], lengths: Lengths) -> float:
    """Return the fraction of padding among all tokens of the batches; all sides count."""
    sides = np.asarray(lengths).reshape(len(lengths), -1)
    real = sum(int(sides[batch].sum()) for batch in batches)
    padded = sum(len(batch) * int(sides[batch].max(axis=0).sum()) for batch in batches)
    return 1 - real / padded if padded else 0.0


def _widths(lengths: Lengths) -> Indices:
    """Return the length of the longest side of each example."""
    array = np.asarray(lengths)
    if array.ndim not in (1, 2) or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise UsageError(
            f"lengths must be integers, [examples] or [examples sides]; got {array.dtype} of shape {array.shape}"
        )
    return (array if array.ndim == 1 else array.max(axis=1)).astype(np.int64)


def _check(widths: Indices, config: BatchOptions, longest: int) -> None:
    if not len(widths):
        raise DataError("there are no examples to batch")
    too_long = np.flatnonzero(widths > longest)
    if len(too_long):
        first = int(too_long[0])
        more = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
        bound = f"batch.length: {longest}" if longest != config.tokens else f"batch.tokens: {longest}"
        raise DataError(
            f"example {first} has {widths[first]} tokens, more than {bound}{more}; shorten it or raise the limit"
        )


def _shuffled(count: int, seed: int, epoch: int, purpose: int) -> Indices:
    """Return a permutation of 0 to count-1, determined by seed, epoch and purpose.

    Sorting raw 64-bit draws is stable across numpy versions, which guarantee the raw stream of a bit generator but not
    the result of `permutation`.
    """
    draws = np.random.PCG64([seed, epoch, purpose]).random_raw(count)
    return np.argsort(draws, kind="stable").astype(np.int64)


def _near_in_length(order: Indices, sides: Lengths, config: BatchOptions) -> Indices:
    """Sort `order` by length within pools, reversing every other pool so that batches across a boundary pad little."""
    widths = sides.max(axis=1)
    rows = config.size or max(1, (config.tokens or 0) // max(1, int(widths.mean())))
    pool = rows * _POOL
    pieces = []
    for number, start in enumerate(range(0, len(order), pool)):
        piece = order[start : start + pool]
        keys = sides[piece]
        piece = piece[np.lexsort((*keys.T, widths[piece]))]
        pieces.append(piece if number % 2 == 0 else piece[::-1])
    return np.concatenate(pieces)


def _cut(order: Indices, widths: Indices, config: BatchOptions) -> list[Indices]:
    """Cut `order` into batches as large as the budget allows."""
    if config.size is not None:
        return [order[start : start + config.size] for start in range(0, len(order), config.size)]
    budget = config.tokens or 0
    starts, longest = [0], 0
    each = (width for start in range(0, len(order), _POOL) for width in widths[order[start : start + _POOL]].tolist())
    for place, width in enumerate(each):
        longest = max(longest, width)
        if longest * (place + 1 - starts[-1]) > budget:
            starts.append(place)
            longest = width
    return np.split(order, starts[1:])


def _pack(examples: Indices, widths: Indices, room: int) -> list[list[int]]:
    """Pack examples into rows of at most `room` tokens with the best-fit decreasing algorithm."""
    rows: list[list[int]] = []
    by_space: dict[int, list[list[int]]] = {}
    spaces = 0  # bit n is set if some row has space for n more tokens
    for index in examples[np.argsort(-widths[examples], kind="stable")].tolist():
        width = int(widths[index])
        fitting_spaces = spaces >> width
        if fitting_spaces:
            space = width + (fitting_spaces & -fitting_spaces).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
        else:
            space, row = room, []
            rows.append(row)
        row.append(index)
        by_space.setdefault(space - width, []).append(row)
        spaces |= 1 << (space - width)
    return rows
