"""Reading texts into a decode state: in pieces, equal rows once, and once what all rows begin with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfkit.core.context import Inputs
from tfkit.models import DecodeState, Model
from tfkit.models.call import Call
from tfkit.models.stack import Stack

PIECE = 4096  # tokens that are read at once, all rows together, so that memory is bounded however long a prompt is
WORTHWHILE = 64  # tokens that a common beginning must save, so that reading it by itself pays


@dataclass(frozen=True)
class PaddedRows:
    """Rows of ids [rows time], of which the first `fill` [rows 1] are padding, and the memory that they attend to."""

    ids: Tensor
    fill: Tensor | None = None  # None: there is no padding
    memory: Tensor | None = None  # [rows source d_model], None where a state keeps it
    memory_real: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.ids.shape[0]

    @property
    def length(self) -> int:
        """Tokens of each row, padding among them."""
        return self.ids.shape[1]

    @property
    def real(self) -> Tensor | None:
        """Which tokens are real, [rows time]; None: all."""
        return None if self.fill is None else self._places(0) >= self.fill

    def positions(self, start: int = 0) -> Tensor:
        """Positions [rows|1 time-start] of the tokens from `start` on, counted from each row's first real one."""
        places = self._places(start)
        return places if self.fill is None else (places - self.fill).clamp(min=0)

    def lengths(self, until: int) -> Tensor:
        """How long the text of each row is up to the place `until`, [rows|1]; padding alone counts as one token."""
        if self.fill is None:
            return torch.full((1,), until, device=self.ids.device)
        return (until - self.fill[:, 0]).clamp(min=1)

    def chosen(self, rows: Tensor) -> PaddedRows:
        """Row `rows[i]` as row i."""
        parts = (self.ids, self.fill, self.memory, self.memory_real)
        return PaddedRows(*(None if part is None else part.index_select(0, rows) for part in parts))  # type: ignore[arg-type]

    def _places(self, start: int) -> Tensor:
        return torch.arange(start, self.length, device=self.ids.device)[None]


def encoded(model: Model, source: Tensor, real: Tensor | None) -> tuple[Tensor, list[int]]:
    """The encoder's output [rows source d_model], each different source read once, and which one each row reads."""
    vectors = source.is_floating_point()
    keys = [row.tobytes() for row in source.cpu().numpy()] if vectors else [tuple(row) for row in source.tolist()]
    which, firsts = distinct(keys, real)
    read, mask = (
        (source, real) if len(firsts) == len(which) else (source[firsts], None if real is None else real[firsts])
    )
    memory: Tensor = model.stack("encoder")(_source_call(read, mask))
    return (memory if len(firsts) == len(which) else memory[which]), which


def _source_call(read: Tensor, real: Tensor | None) -> Call:
    """The call of an encoder with ids, or with vectors [rows source width]."""
    return Call(Inputs(real=real), read) if read.is_floating_point() else Call(Inputs(read, real=real))


def read_begun(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Hidden states [rows time d_model] of texts read into an empty state; equal rows are read once."""
    which, firsts = distinct([tuple(row) for row in text.ids.tolist()], text.fill, state.sources)
    if len(firsts) == text.rows:
        return _read_begun(model, state, text)
    device = text.ids.device
    rows = torch.tensor(which, device=device)
    sources, state.sources = state.sources, None
    hidden = _read_begun(model, state, text.chosen(torch.tensor(firsts, device=device))).index_select(0, rows)
    state.reorder(rows)
    state.sources = sources
    return hidden


def read_on(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Hidden states [rows new d_model] of what the state has not seen of the texts, padding known to it."""
    return _read(model, state, text, None, text.positions(state.length))


def hidden_of(model: Model, text: PaddedRows) -> Tensor:
    """Hidden states [rows time d_model] of the texts, nothing kept."""
    hidden: Tensor = last(model)(_call(text, text.ids, text.real, text.positions()))
    return hidden


def _read_begun(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """The same for rows that differ: what all begin with is read as one row, where that pays and changes nothing."""
    count = _common(model, text)
    if not count:
        return _read(model, state, text, text.real, text.positions())
    fill = torch.zeros(text.rows, 1, dtype=torch.long, device=text.ids.device) if text.fill is None else text.fill
    row = int(fill.argmin())
    start = int(fill[row])
    first = _read(
        model, state, begun := PaddedRows(text.ids[row : row + 1, start : start + count]), None, begun.positions()
    )
    state.reorder(torch.zeros(text.rows, dtype=torch.long, device=fill.device))
    # the padding of a row stands between what it begins with and what is its own
    place = torch.arange(text.length, device=fill.device)[None]
    real = None if text.fill is None else (place < count) | (place >= count + fill)
    rest = _read(model, state, text, real, text.positions(count))
    hidden = torch.cat((first.expand(text.rows, -1, -1), rest), dim=1)
    order = torch.where(place < fill, place + count, torch.where(place < fill + count, place - fill, place))
    return hidden if text.fill is None else hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[2]))


def _common(model: Model, text: PaddedRows) -> int:
    """Tokens that all rows begin with and that may be read by themselves, at least one less than any row has.

    Padding comes to stand after them, which is the same only for a stack that counts no places; and positions must
    say of a beginning what they say of the whole.
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
    """Hidden states of what the state has not seen, at `positions`, in pieces; `real` is of the whole text."""
    seen, end = state.length, text.length
    size = max(1, PIECE // text.rows)
    if seen + size < end and not last(model).same_regime(text.lengths(seen + size), text.lengths(end)):
        size = end
    found = []
    for start in range(seen, end, size):
        stop = min(start + size, end)
        mask = None if real is None else real[:, :stop]
        where = positions[:, start - seen : stop - seen]
        found.append(last(model)(_call(text, text.ids[:, start:stop], mask, where, state)))
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _call(
    text: PaddedRows, ids: Tensor, real: Tensor | None, positions: Tensor, state: DecodeState | None = None
) -> Call:
    """What asks for the hidden states of some of the ids; `real` may be of all that the state has seen too."""
    if state is not None and state.memory is None:
        state.memory, state.memory_real = text.memory, text.memory_real
    source = text if state is None else state
    return Call(Inputs(ids, real=real), None, positions, None, source.memory, source.memory_real, state)


def last(model: Model) -> Stack:
    """The stack that writes."""
    return model.stack(model.blueprint.last.side)


def distinct(rows: Sequence[Hashable], *more: Tensor | None) -> tuple[list[int], list[int]]:
    """Which of the different rows each one is, and where each of those stands first; `more` tells rows apart too."""
    extra = [part.view(len(rows), -1).tolist() for part in more if part is not None]
    known: dict[Hashable, int] = {}
    which: list[int] = []
    firsts: list[int] = []
    for place, row in enumerate(rows):
        key = (row, *(tuple(part[place]) for part in extra))
        if key not in known:
            known[key] = len(firsts)
            firsts.append(place)
        which.append(known[key])
    return which, firsts
