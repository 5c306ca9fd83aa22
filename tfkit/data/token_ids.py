"""Token ids of many texts in one array, in memory or memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class TokenIds:
    """A sequence of texts as ids: text n is `tokens[offsets[n] : offsets[n + 1]]`."""

    def __init__(self, tokens: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        self.tokens, self.offsets = tokens, offsets

    @classmethod
    def of(cls, texts: Iterable[Sequence[int] | Ids]) -> TokenIds:
        """Build from lists of ids, which are copied."""
        arrays = [np.asarray(text, dtype=np.int32) for text in texts]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate([np.zeros(0, np.int32), *arrays]), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of ids in each text."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Ids:
        return self.between(int(self.offsets[number]), int(self.offsets[number + 1]))

    def between(self, start: int, stop: int) -> Ids:
        """Return the ids from `start` up to `stop` of all texts concatenated."""
        return np.asarray(self.tokens[start:stop], dtype=np.int32)


class Stream:
    """The non-empty texts concatenated into one sequence of ids, with `end` (unless None) between texts."""

    def __init__(self, texts: TokenIds, end: int | None) -> None:
        self.texts, self.end = texts, end
        self.full: NDArray[np.int64] = np.flatnonzero(texts.lengths)
        between = 0 if end is None else 1
        self._starts = texts.offsets[self.full] + between * np.arange(len(self.full))
        self._size = int(texts.offsets[-1]) + between * max(0, len(self.full) - 1)

    def __len__(self) -> int:
        return self._size

    def between(self, start: int, stop: int) -> Ids:
        """Return the ids from `start` up to `stop`."""
        if self.end is None:
            return self.texts.between(start, min(stop, self._size))
        first, last = (int(at) for at in np.searchsorted(self._starts, [start, stop - 1], side="right") - 1)
        found = np.full(min(stop, self._size) - start, self.end, dtype=np.int32)
        for place in range(first, last + 1):
            text, begin = self.texts[self.full[place]], int(self._starts[place]) - start
            cut = text[max(0, -begin) : max(0, len(found) - begin)]
            found[max(0, begin) : max(0, begin) + len(cut)] = cut
        return found
