"""Prefill of a decode state: long texts are read in chunks, equal rows and a common prefix only once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfkit.core.inputs import Inputs
from tfkit.models import DecodeState, Model
from tfkit.models.call import Call
from tfkit.models.stack import Stack

PIECE = 4096  # maximum number of tokens in a forward over all rows, to bound the memory
WORTHWHILE = 64  # minimum number of tokens saved for which a common prefix is read separately


@dataclass(frozen=True)
class PaddedRows:
    """Left-padded ids [rows time], with `fill` [rows 1] padding tokens per row, and the memory to attend to.

    `most` is the number of positions of the stack, if limited. Rows that have ended may be longer; they stay at the
    last position.
    """

    ids: Tensor
    fill: Tensor | None = None  # None: no padding
    memory: Tensor | None = None  # [rows source d_model]; None if held by a state
    memory_real: Tensor | None = None
    most: int | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.ids.shape[0]

    @property
    def length(self) -> int:
        """Length of the rows, including padding."""
        return self.ids.shape[1]

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens, [rows time]; None: all."""
        return None if self.fill is None else self._places(0) >= self.fill

    def positions(self, start: int = 0) -> Tensor:
        """Return positions [rows|1 time-start] from column `start` on, counted from each row's first real token."""
        places = self._places(start)
        final = None if self.most is None else self.most - 1
        return places if self.fill is None else (places - self.fill).clamp(0, final)

    def lengths(self, until: int) -> Tensor:
        """Return the text length of each row up to column `until`, [rows|1]; at least 1."""
        if self.fill is None:
            return torch.full((1,), until, device=self.ids.device)
        return (until - self.fill[:, 0]).clamp(min=1)

    def chosen(self, rows: Tensor) -> PaddedRows:
        """Select rows: row i is the former row `rows[i]`."""
        fill, memory, real = (
            None if part is None else part.index_select(0, rows) for part in (self.fill, self.memory, self.memory_real)
        )
        return PaddedRows(self.ids.index_select(0, rows), fill, memory, real, self.most)

    def _places(self, start: int) -> Tensor:
        return torch.arange(start, self.length, device=self.ids.device)[None]


def encoded(model: Model, source: Tensor, real: Tensor | None) -> tuple[Tensor, list[int]]:
    """Encode each distinct source once. Return [rows source d_model] and the index of each row's distinct source."""
    vectors = source.is_floating_point()
    keys = [row.tobytes() for row in source.cpu().numpy()] if vectors else [tuple(row) for row in source.tolist()]
    which, firsts = distinct(keys, real)
    read, mask = (
        (source, real) if len(firsts) == len(which) else (source[firsts], None if real is None else real[firsts])
    )
    memory: Tensor = model.stack("encoder")(_source_call(read, mask))
    return (memory if len(firsts) == len(which) else memory[which]), which


def _source_call(read: Tensor, real: Tensor | None) -> Call:
    """Build an encoder call from ids, or from vectors [rows source width]."""
    return Call(Inputs(real=real), read) if read.is_floating_point() else Call(Inputs(read, real=real))


def read_first(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Prefill an empty state and return hidden states [rows time d_model]. Equal rows are computed once."""
    which, firsts = distinct([tuple(row) for row in text.ids.tolist()], text.fill, state.sources)
    if len(firsts) == text.rows:
        return _read_first(model, state, text)
    device = text.ids.device
    rows = torch.tensor(which, device=device)
    sources, state.sources = state.sources, None
    hidden = _read_first(model, state, text.chosen(torch.tensor(firsts, device=device))).index_select(0, rows)
    state.reorder(rows)
    state.sources = sources
    return hidden


def read_on(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Extend the state by the tokens that it lacks and return their hidden states [rows new d_model]."""
    return _read(model, state, text, None, text.positions(state.length))


def hidden_of(model: Model, text: PaddedRows) -> Tensor:
    """Return hidden states [rows time d_model] of the texts, without a state."""
    hidden: Tensor = last(model)(_call(text, text.ids, text.real, text.positions()))
    return hidden


def _read_first(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Prefill distinct rows; compute the common prefix once if this is worthwhile and equivalent."""
    count = _common(model, text)
    if not count:
        return _read(model, state, text, text.real, text.positions())
    fill = torch.zeros(text.rows, 1, dtype=torch.long, device=text.ids.device) if text.fill is None else text.fill
    row = int(fill.argmin())
    start = int(fill[row])
    first = _read(
        model, state, prefix := PaddedRows(text.ids[row : row + 1, start : start + count]), None, prefix.positions()
    )
    state.reorder(torch.zeros(text.rows, dtype=torch.long, device=fill.device))
    # the padding of a row is now between the common prefix and the rest
    place = torch.arange(text.length, device=fill.device)[None]
    real = None if text.fill is None else (place < count) | (place >= count + fill)
    rest = _read(model, state, text, real, text.positions(count))
    hidden = torch.cat((first.expand(text.rows, -1, -1), rest), dim=1)
    order = torch.where(place < fill, place + count, torch.where(place < fill + count, place - fill, place))
    return hidden if text.fill is None else hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[2]))


def _common(model: Model, text: PaddedRows) -> int:
    """Return the length of the common prefix to read separately, shorter than every row; 0 if not worthwhile.

    Reading it first puts the padding after the prefix, so the stack must tolerate gaps. The encodings of the prefix
    must not depend on the length of the text.
    """
    stack = last(model)
    if text.rows == 1 or model.blueprint.encoder is not None or (text.fill is not None and not stack.takes_gaps):
        return 0
    fills = [0] * text.rows if text.fill is None else text.fill[:, 0].tolist()
    rows = [ids[fill:] for ids, fill in zip(text.ids.tolist(), fills, strict=True)]
    shortest = min(map(len, rows)) - 1
    count = next((place for place in range(shortest) if len({row[place] for row in rows}) > 1), shortest)
    if count * (text.rows - 1) < WORTHWHILE:
        return 0
    return count if stack.same_regime(torch.full((1,), count, device=text.ids.device), text.lengths(text.length)) else 0


def _read(model: Model, state: DecodeState, text: PaddedRows, real: Tensor | None, positions: Tensor) -> Tensor:
    """Extend the state in chunks by the tokens that it lacks, at `positions`; `real` covers the whole text."""
    seen, end = state.length, text.length
    size = max(1, PIECE // text.rows)
    if seen + size < end and not last(model).same_regime(text.lengths(seen + size), text.lengths(end)):
        size = end
    hidden = []
    for start in range(seen, end, size):
        stop = min(start + size, end)
        mask = None if real is None else real[:, :stop]
        where = positions[:, start - seen : stop - seen]
        hidden.append(last(model)(_call(text, text.ids[:, start:stop], mask, where, state)))
    return hidden[0] if len(hidden) == 1 else torch.cat(hidden, dim=1)


def _call(
    text: PaddedRows, ids: Tensor, real: Tensor | None, positions: Tensor, state: DecodeState | None = None
) -> Call:
    """Build a call for `ids`; `real` may also cover the tokens in the state."""
    if state is not None and state.memory is None:
        state.memory, state.memory_real = text.memory, text.memory_real
    source = text if state is None else state
    return Call(Inputs(ids, real=real), None, positions, None, source.memory, source.memory_real, state)


def last(model: Model) -> Stack:
    """Return the stack that generates tokens."""
    return model.stack(model.blueprint.last.side)


def distinct(rows: Sequence[Hashable], *more: Tensor | None) -> tuple[list[int], list[int]]:
    """Deduplicate rows, with tensors in `more` as further keys.

    Return the index of each row among the distinct rows, and the first row equal to each distinct row.
    """
    extra = [part.view(len(rows), -1).tolist() for part in more if part is not None]
    numbers: dict[Hashable, int] = {}
    which: list[int] = []
    firsts: list[int] = []
    for place, row in enumerate(rows):
        key = (row, *(tuple(part[place]) for part in extra))
        if key not in numbers:
            numbers[key] = len(firsts)
            firsts.append(place)
        which.append(numbers[key])
    return which, firsts
