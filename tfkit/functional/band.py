"""Attention along a band at a cost that grows with the length: blocks of queries against the keys near them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from tfkit.core.context import Visibility, at, opened

SMALLEST = 64  # queries in a block: fewer make too many small products
PIECE = 1 << 21  # scores that a CPU's kernel is asked for at once, a head: its mask of them stays in the cache


@dataclass(frozen=True)
class Tiles:
    """Blocks of queries, and for each the keys from `before` its first to `after` its last query.

    Query i stands at the place past + i of the sequence, key j at the place first + j; `keys` is the last place's end.
    """

    block: int
    before: int
    after: int
    queries: int
    keys: int
    past: int
    first: int = 0

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return (self.queries + self.block - 1) // self.block

    @property
    def width(self) -> int:
        """Keys that a block looks at."""
        return self.before + self.block + self.after

    def of_queries(self, x: Tensor) -> Tensor:
        """[batch head query dim] -> [(batch tile) head block dim]."""
        x = _padded(x, 0, self.count * self.block - self.queries)
        return rearrange(x, "batch head (tile time) dim -> (batch tile) head time dim", time=self.block)

    def of_keys(self, x: Tensor) -> Tensor:
        """[batch head key dim] -> [batch tile head width dim], a view; places beyond the sequence are zeros."""
        end = self.past + self.count * self.block + self.after
        x = _padded(x, self.before - self.past + self.first, end - self.keys)
        return rearrange(x.unfold(2, self.width, self.block), "batch head tile dim time -> batch tile head time dim")

    def joined(self, parts: Sequence[Tensor], batch: int) -> Tensor:
        """[tiles head block dim] of some of the (batch tile) after the others -> [batch head query dim]."""
        rows = [part.transpose(1, 2) for part in parts]  # as the kernels lay them out, so that nothing else is copied
        x = rows[0] if len(rows) == 1 else torch.cat(rows)
        x = rearrange(x, "(batch tile) time head dim -> batch head (tile time) dim", batch=batch)
        return x[:, :, : self.queries]

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where queries and keys of each block stand: [1 tile block] and [1 tile width]."""
        first = self.past + self.block * torch.arange(self.count, device=device)[:, None]
        query = first + torch.arange(self.block, device=device)
        key = first - self.before + torch.arange(self.width, device=device)
        return query[None], key[None]


def tiles_of(mask: Visibility) -> Tiles | None:
    """The tiles that show all that `mask` shows, where they are at most three quarters of the whole; else None."""
    band, span = mask.band(), mask.span
    # an exported graph has one way for all lengths; how many tokens are marked is not known while any graph is made
    if torch.compiler.is_exporting() or (mask.marked() is not None and torch.compiler.is_compiling()):
        return None
    if band is None:
        return None
    aligned = band.aligned if mask.marked() is None else None
    before, after = (band.before, band.after) if aligned is None else (0, 0)
    block = aligned or max(SMALLEST, (before + after) // 2)
    tiles = Tiles(min(block, span.queries), before, after, span.queries, span.keys, span.past, span.first)
    return tiles if 4 * tiles.width <= 3 * (span.keys - span.first) else None


@dataclass(frozen=True)
class TileMask:
    """Who of some queries may look at whom of some keys: what `Visibility` is for the whole."""

    visible: Tensor  # [batch|1 query key]
    is_causal: bool = False

    def dense(self) -> Tensor:
        """[batch|1 query key], True = may look."""
        return self.visible

    def seen(self) -> tuple[Tensor, Tensor]:
        """The mask with rows that see nothing opened, and which rows see something."""
        return opened(self.visible)


class Band:
    """A mask cut into tiles. Where some tokens are marked, every tile has their keys after its own.

    What marked tokens see is left to `rows`; `places` [batch n] is where they stand, None where none is.
    """

    def __init__(self, mask: Visibility, tiles: Tiles, batch: int) -> None:
        self.tiles = tiles
        marked = mask.marked()
        self.places = None if marked is None else places_of(marked)[0]
        self.shown = self._causal(mask) or TileMask(self._visible(mask, batch).flatten(0, 1))
        self.rows = None if self.places is None else TileMask(mask.among(self.places, mask.span.key()[:, 0]))

    def _causal(self, mask: Visibility) -> TileMask | None:
        """The triangle of each tile, where there is nothing else to hide."""
        others = [rule for rule in mask.rules if rule.aligned != self.tiles.block]
        if self.tiles.width > self.tiles.block or len(others) != 1 or not others[0].triangle:
            return None
        square = torch.ones(1, self.tiles.block, self.tiles.block, dtype=torch.bool, device=mask.span.device)
        return None if mask.real is not None or mask.segments is not None else TileMask(square.tril(), is_causal=True)

    def _visible(self, mask: Visibility, batch: int) -> Tensor:
        """[batch tile block width], the marked keys only where they stand after."""
        query, key = self.tiles.places(mask.span.device)
        count = self._at_once(mask.span.device, self.tiles.width)  # places are whole numbers, which take memory
        pieces = zip(torch.split(query, count, dim=1), torch.split(key, count, dim=1), strict=True)
        visible = torch.cat([mask.among(*piece) for piece in pieces], dim=1).expand(batch, -1, -1, -1)
        marked = mask.marked()
        if marked is None or self.places is None:
            return visible
        near = visible & ~at(marked, key)[:, :, None]
        known = Visibility((), mask.span, real=mask.real, segments=mask.segments)
        meant = marked.gather(1, self.places)[:, None, None]
        far = known.among(query.expand(batch, -1, -1), self.places[:, None]) & meant
        return torch.cat((near, far.expand(-1, self.tiles.count, -1, -1)), dim=-1)

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, TileMask]]:
        """Queries [tiles head block dim], keys and values [tiles head width dim] of some tiles after the others."""
        triple = self.tiles.of_queries(query), self._keys(key), self._keys(value)
        visible, count = self.shown.visible, self._at_once(query.device, triple[1].shape[2])
        for start in range(0, len(triple[0]), count):
            own = slice(start, start + count)
            shown = self.shown if len(visible) == 1 else TileMask(visible[own])
            yield triple[0][own], triple[1][own], triple[2][own], shown

    def _at_once(self, device: torch.device, width: int) -> int:
        """How many tiles of so many keys are worked on together."""
        if device.type != "cpu" or torch.compiler.is_compiling():
            return sys.maxsize
        return max(1, PIECE // (self.tiles.block * width))

    def _keys(self, x: Tensor) -> Tensor:
        """[batch head key dim] -> [(batch tile) head width dim], the marked ones after."""
        near = self.tiles.of_keys(x)
        if self.places is None:
            return near.flatten(0, 1)
        far = rows_at(x, self.places)[:, None].expand(-1, self.tiles.count, -1, -1, -1)
        return torch.cat((near, far), dim=3).flatten(0, 1)


def band_of(mask: Visibility, batch: int) -> Band | None:
    """The mask cut into tiles where that is worth it, made once in a forward; None where it is not."""
    if "band" not in mask.kept:
        tiles = tiles_of(mask)
        mask.kept["band"] = None if tiles is None else Band(mask, tiles, batch)
    band: Band | None = mask.kept["band"]
    return band


def _padded(x: Tensor, before: int, after: int) -> Tensor:
    """[batch head time dim] with zeros around the time, or without some of it; nothing is copied for nothing."""
    return F.pad(x, (0, 0, before, after)) if before or after else x


def places_of(marked: Tensor) -> tuple[Tensor, Tensor]:
    """Where the marked tokens of [batch time] stand: [batch most], and which of those places are marked at all.

    A row with fewer than `most` names others of its places, each once.
    """
    most = 1 if marked.device.type == "meta" else int(marked.sum(dim=1).max())
    places = marked.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return places, marked.gather(1, places)


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """[batch head time dim] at places [batch n] -> [batch head n dim]."""
    return x.gather(2, _index(x, places))


def with_rows(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """[batch head time dim] with [batch head n dim] put at places [batch n]."""
    return x.scatter(2, _index(rows, places), rows)


def _index(x: Tensor, places: Tensor) -> Tensor:
    return repeat(places, "batch n -> batch head n dim", head=x.shape[1], dim=x.shape[3])
