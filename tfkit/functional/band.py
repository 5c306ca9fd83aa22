"""Banded attention at linear cost: blocks of queries attend to nearby keys."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from tfkit.core.context import Visibility, at, opened
from tfkit.functional.dropout import draws_here

SMALLEST = 64  # queries in a block; smaller matrix products are inefficient
PIECE = 1 << 21  # scores per head in a CPU kernel call, so that the mask fits into the cache


@dataclass(frozen=True)
class Tiles:
    """Blocks of queries. A block sees its own positions, `before` positions before it and `after` positions after it.

    Query i has position past + i in the sequence, and key j has position first + j. `keys` is one more than the
    position of the last key.
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
        return (self.queries + self.block - 1) // self.block

    @property
    def width(self) -> int:
        """Number of keys per block."""
        return self.before + self.block + self.after

    def of_queries(self, x: Tensor) -> Tensor:
        """Map [batch head query dim] to [(batch tile) head block dim]."""
        x = _padded(x, 0, self.count * self.block - self.queries)
        return rearrange(x, "batch head (tile time) dim -> (batch tile) head time dim", time=self.block)

    def of_keys(self, x: Tensor) -> Tensor:
        """Map [batch head key dim] to a view [batch tile head width dim], with zeros beyond the sequence."""
        end = self.past + self.count * self.block + self.after
        x = _padded(x, self.before - self.past + self.first, end - self.keys)
        return rearrange(x.unfold(2, self.width, self.block), "batch head tile dim time -> batch tile head time dim")

    def joined(self, parts: Sequence[Tensor], batch: int) -> Tensor:
        """Concatenate chunks of [(batch tile) head block dim] into [batch head query dim]."""
        rows = [part.transpose(1, 2) for part in parts]  # memory layout of the kernels' outputs, to avoid a copy
        x = rows[0] if len(rows) == 1 else torch.cat(rows)
        x = rearrange(x, "(batch tile) time head dim -> batch head (tile time) dim", batch=batch)
        return x[:, :, : self.queries]

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the positions of queries and keys in each block: [1 tile block] and [1 tile width]."""
        first = self.past + self.block * torch.arange(self.count, device=device)[:, None]
        query = first + torch.arange(self.block, device=device)
        key = first - self.before + torch.arange(self.width, device=device)
        return query[None], key[None]


def tiles_of(mask: Visibility) -> Tiles | None:
    """Return tiles that cover everything visible in `mask`, or None if they save less than a quarter of the scores."""
    band, span = mask.band(), mask.span
    # exported graphs need one path for all lengths, and tracing does not know the number of marked tokens
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
    """A dense mask for some of the queries and keys of a `Visibility`."""

    visible: Tensor  # [batch|1 query key]
    is_causal: bool = False

    def dense(self) -> Tensor:
        """Return the mask [batch|1 query key], where True means visible."""
        return self.visible

    def seen(self) -> tuple[Tensor, Tensor]:
        """Return the mask with empty rows made fully visible, and a mask of the rows that were not empty."""
        return opened(self.visible)


class Band:
    """A mask split into tiles. Every tile also contains the keys of marked tokens, at its end.

    `places` [batch n] are the positions of marked tokens, or None, and `rows` is the mask of marked queries.
    """

    def __init__(self, mask: Visibility, tiles: Tiles, batch: int) -> None:
        self.tiles = tiles
        marked = mask.marked()
        self.places = None if marked is None else places_of(marked)[0]
        self.shown = self._causal(mask) or TileMask(self._visible(mask, batch).flatten(0, 1))
        self.rows = None if self.places is None else TileMask(mask.among(self.places, mask.span.key()))

    def _causal(self, mask: Visibility) -> TileMask | None:
        """Return a triangular mask shared by all tiles, or None if other keys are hidden too."""
        others = [rule for rule in mask.rules if rule.aligned != self.tiles.block]
        if self.tiles.width > self.tiles.block or len(others) != 1 or not others[0].triangle:
            return None
        square = torch.ones(1, self.tiles.block, self.tiles.block, dtype=torch.bool, device=mask.span.device)
        return None if mask.real is not None or mask.segments is not None else TileMask(square.tril(), is_causal=True)

    def _visible(self, mask: Visibility, batch: int) -> Tensor:
        """Return the mask [batch tile block width], with marked keys moved to the end."""
        query, key = self.tiles.places(mask.span.device)
        count = self._at_once(mask.span.device, self.tiles.width)  # chunked to limit memory: positions are integers
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

    def parts(
        self, query: Tensor, key: Tensor, value: Tensor, whole: bool = False
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, TileMask]]:
        """Yield chunks of tiles: queries [tiles head block dim], keys and values [tiles head width dim], and the mask.

        With `whole`, there is a single chunk.
        """
        triple = self.tiles.of_queries(query), self._keys(key), self._keys(value)
        visible = self.shown.visible
        count = len(triple[0]) if whole else self._at_once(query.device, triple[1].shape[2])
        for start in range(0, len(triple[0]), count):
            own = slice(start, start + count)
            shown = self.shown if len(visible) == 1 else TileMask(visible[own])
            yield triple[0][own], triple[1][own], triple[2][own], shown

    def _at_once(self, device: torch.device, width: int) -> int:
        """Return the number of tiles with `width` keys to process at once."""
        if device.type != "cpu" or torch.compiler.is_compiling():
            return sys.maxsize
        return max(1, PIECE // (self.tiles.block * width))

    def _keys(self, x: Tensor) -> Tensor:
        """Map [batch head key dim] to [(batch tile) head width dim], with marked keys at the end."""
        near = self.tiles.of_keys(x)
        if self.places is None:
            return near.flatten(0, 1)
        far = rows_at(x, self.places)[:, None].expand(-1, self.tiles.count, -1, -1, -1)
        return torch.cat((near, far), dim=3).flatten(0, 1)


def band_of(mask: Visibility, batch: int) -> Band | None:
    """Return the tiled mask, or None if tiling is not worthwhile. Cached per forward."""
    if "band" not in mask.kept:
        tiles = tiles_of(mask)
        mask.kept["band"] = None if tiles is None else Band(mask, tiles, batch)
    band: Band | None = mask.kept["band"]
    return band


def _padded(x: Tensor, before: int, after: int) -> Tensor:
    """Pad the time axis of [batch head time dim] with zeros, or crop it. Do not copy if nothing changes."""
    return F.pad(x, (0, 0, before, after)) if before or after else x


def places_of(marked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions [batch most] of the tokens marked in [batch time], and a mask of the valid positions.

    Rows with fewer marked tokens than `most` are filled up with distinct unmarked positions. In a piece of a batch,
    `most` is that of the whole batch.
    """
    draws = draws_here()
    most = 1 if marked.device.type == "meta" else int(marked.sum(dim=1).max())
    most = most if draws is None else max(most, draws.marked)
    places = marked.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return places, marked.gather(1, places)


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """Gather the positions `places` [batch n] of [batch head time dim] -> [batch head n dim]."""
    return x.gather(2, _index(x, places))


def with_rows(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Write rows [batch head n dim] to the positions `places` [batch n] of [batch head time dim]."""
    return x.scatter(2, _index(rows, places), rows)


def _index(x: Tensor, places: Tensor) -> Tensor:
    return repeat(places, "batch n -> batch head n dim", head=x.shape[1], dim=x.shape[3])
