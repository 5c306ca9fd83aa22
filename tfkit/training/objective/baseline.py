"""Simple baselines for comparison: an n-gram model and token frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

Ids = np.ndarray[Any, np.dtype[Any]]  # integer token ids
Floats = np.ndarray[Any, np.dtype[np.float64]]

TRAIN_LIMIT = 2_000_000  # maximum tokens for fitting an n-gram model, which takes a few seconds
VALID_LIMIT = 500_000  # maximum tokens for evaluating the model


@dataclass(frozen=True)
class Baseline:
    """Score of a baseline: `loss` in nats per target, and `accuracy` as a fraction, if known."""

    name: str
    loss: float
    accuracy: float | None = None


def ngram_baseline(
    train: Sequence[Ids], valid: Sequence[Ids], vocab_size: int, order: int = 5, of: str = ""
) -> Baseline | None:
    """Return the loss of an n-gram model on `valid`, or None if there are no targets.

    The first token of each row is context only. Large corpora are subsampled to TRAIN_LIMIT and VALID_LIMIT tokens.
    """
    nats = KneserNey(vocab_size, order).fit(evenly(train, TRAIN_LIMIT)).nats(evenly(valid, VALID_LIMIT))
    name = f"{order}-gram, Kneser-Ney" + f" {of}" * bool(of)
    return Baseline(name, float(nats.mean())) if len(nats) else None


def unigram_baseline(train: Ids, valid: Ids, vocab_size: int) -> Baseline | None:
    """Return the loss of add-one smoothed unigrams and the accuracy of the most frequent token; None if empty."""
    if not len(valid):
        return None
    counts = np.bincount(train, minlength=vocab_size) + 1
    nats = np.log(counts.sum()) - np.log(counts[valid])
    return Baseline("most frequent token", float(nats.mean()), float((valid == counts.argmax()).mean()))


class ItemColumn(Sequence[Ids]):
    """Lazy sequence of one field of items. `size` is the total number of tokens."""

    def __init__(self, items: Sequence[Mapping[str, Ids]], name: str, size: int) -> None:
        self.items, self.name, self.size = items, name, size

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Ids: ...

    @overload
    def __getitem__(self, place: slice) -> list[Ids]: ...

    def __getitem__(self, place: int | slice) -> Ids | list[Ids]:
        if isinstance(place, slice):
            return [item[self.name] for item in self.items[place]]
        return self.items[place][self.name]


def evenly(rows: Sequence[Ids], limit: int) -> Sequence[Ids]:
    """Keep every n-th row, for about `limit` tokens in total. If there is only one row, truncate it."""
    size = rows.size if isinstance(rows, ItemColumn) else sum(len(row) for row in rows)
    if size <= limit:
        return rows
    if len(rows) == 1:
        return [rows[0][:limit]]
    return rows[:: -(-size // limit)]


@dataclass
class Level:
    """N-grams of one order, identified by their index in the sorted `keys` (context * symbols + last token).

    `counts` and `discounts` have one entry per n-gram. `totals` and `left` (the probability mass left to shorter
    contexts) have one entry per context, which is an n-gram of the next lower order.
    """

    keys: Ids
    counts: Floats
    discounts: Floats
    totals: Floats
    left: Floats

    def blend(self, context: Ids, found: Ids, shorter: Floats) -> Floats:
        """Interpolate: max(count(h w) - discount, 0) / count(h) + left(h) p(w | shorter h). Index -1: unseen."""
        known = (context >= 0) & (self.totals[context] > 0)
        own = np.where(found >= 0, self.counts[found] - self.discounts[found], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            blended = own / self.totals[context] + self.left[context] * shorter
        return np.where(known, blended, shorter)


class KneserNey:
    """Interpolated modified Kneser-Ney n-gram model (Chen and Goodman 1999), exact and vectorized."""

    def __init__(self, vocab_size: int, order: int = 5) -> None:
        self.vocab_size = vocab_size
        self.order = order
        self.levels: list[Level] = []

    def fit(self, rows: Sequence[Ids]) -> KneserNey:
        """Count the n-grams of `rows`. The first token of each row is context only."""
        tokens, target = self._laid_out(rows)
        symbols = self.vocab_size + 1
        grams = np.zeros(len(tokens), dtype=np.int64)  # index of the n-gram ending at each position
        keys: list[Ids] = []
        counts: list[Floats] = []
        for _ in range(self.order):
            shorter, ending = grams, np.roll(grams, 1) * symbols + tokens
            new, first, grams = np.unique(ending, return_index=True, return_inverse=True)
            seen = np.bincount(grams, weights=target)
            if counts:  # lower orders count distinct left contexts
                counts[-1] = np.bincount(shorter[first][seen > 0], minlength=len(keys[-1])).astype(np.float64)
            keys.append(new)
            counts.append(seen.astype(np.float64))
        contexts = [1, *map(len, keys)]
        self.levels = [_level(*one, symbols) for one in zip(keys, counts, contexts[:-1], strict=True)]
        return self

    def nats(self, rows: Sequence[Ids]) -> Floats:
        """Return -log p of each token given the preceding tokens, except for the first token of each row."""
        tokens, target = self._laid_out(rows)
        grams = np.zeros(len(tokens), dtype=np.int64)
        chance = np.full(len(tokens), 1.0 / self.vocab_size)
        for level in self.levels:
            context = np.roll(grams, 1)
            keys = np.where(context >= 0, context * (self.vocab_size + 1) + tokens, -1)
            place = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
            grams = np.where(level.keys[place] == keys, place, -1)
            chance = level.blend(context, grams, chance)
        result: Floats = -np.log(chance[target])
        return result

    def _laid_out(self, rows: Sequence[Ids]) -> tuple[Ids, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Concatenate rows, with boundary symbols so that no context spans two rows. Return tokens and target mask."""
        edge = np.full(self.order - 1, self.vocab_size, dtype=np.int64)
        parts = [part for row in rows for part in (edge, row)]
        tokens = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        target = np.ones(len(tokens), dtype=np.bool_)
        start = 0
        for row in parts[1::2]:  # `rows` computes a row at each access
            target[start : start + self.order] = False
            start += self.order - 1 + len(row)
        return tokens, target


def _level(keys: Ids, counts: Floats, contexts: int, symbols: int) -> Level:
    discount: Floats = np.asarray(_discounts(counts))[np.minimum(counts, 3).astype(np.int64)]
    context = keys // symbols
    totals = np.bincount(context, weights=counts, minlength=contexts).astype(np.float64)
    left = np.bincount(context, weights=discount, minlength=contexts).astype(np.float64)
    return Level(keys, counts, discount, totals, left / np.maximum(totals, 1))


def _discounts(counts: Floats) -> tuple[float, float, float, float]:
    """Return the discounts for counts 0, 1, 2 and 3+, estimated from the numbers of n-grams that occur 1 to 4 times."""
    n1, n2, n3, n4 = (float((counts == number).sum()) for number in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    plain = (0.0, share, share, share)
    if not (n1 and n2 and n3 and n4):
        return plain  # too few n-grams for separate discounts
    modified = (0.0, share, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
    return modified if min(modified[1:]) > 0 else plain
