"""Prefill of a decode state, and token-by-token decoding with or without one, used by every search."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.output import counted
from tfkit.functional.attend import announce
from tfkit.generation.logits.base import PADDING
from tfkit.generation.prompts import Ids, PromptError, Source, padded_ids, padded_sources
from tfkit.models import DecodeState, Model
from tfkit.models.call import Call, check_needed
from tfkit.models.stack import Stack
from tfkit.models.static import StaticState, Step

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
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # extra inputs of each row, [rows width]

    @property
    def rows(self) -> int:
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
        extra = {name: one.index_select(0, rows) for name, one in self.extra.items()}
        return PaddedRows(self.ids.index_select(0, rows), fill, memory, real, self.most, extra)

    def _places(self, start: int) -> Tensor:
        return torch.arange(start, self.length, device=self.ids.device)[None]


def encoded(model: Model, source: Tensor, real: Tensor | None, extra: Mapping[str, Tensor]) -> tuple[Tensor, list[int]]:
    """Encode each distinct source once. Return [rows source d_model] and the index of each row's distinct source."""
    vectors = source.is_floating_point()
    keys = [row.tobytes() for row in source.cpu().numpy()] if vectors else [tuple(row) for row in source.tolist()]
    which, firsts = distinct(keys, real, *extra.values())
    read, mask = (
        (source, real) if len(firsts) == len(which) else (source[firsts], None if real is None else real[firsts])
    )
    inputs = Inputs(None if vectors else read, real=mask, extra={name: one[firsts] for name, one in extra.items()})
    memory: Tensor = model.stack("encoder")(Call(inputs, read if vectors else None))
    return (memory if len(firsts) == len(which) else memory[which]), which


def read_first(model: Model, state: DecodeState, text: PaddedRows) -> Tensor:
    """Prefill an empty state and return hidden states [rows time d_model]. Equal rows are computed once."""
    which, firsts = distinct([tuple(row) for row in text.ids.tolist()], text.fill, state.sources, *text.extra.values())
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
    if (
        text.rows == 1
        or text.extra
        or model.blueprint.encoder is not None
        or (text.fill is not None and not stack.takes_gaps)
    ):
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
    inputs = Inputs(ids, real=real, extra=text.extra)
    return Call(inputs, None, positions, None, source.memory, source.memory_real, state)


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


SPECIAL = ("global_attention_mask", "prefix_length")  # call inputs that generation cannot supply


class Stepper:
    """Next-token logits for a batch. Prompts are padded on the left, sources on the right.

    With a decode state, equal rows and a common prefix are computed only once, and long prompts are read in chunks.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Ids],
        sources: Sequence[Source] | None = None,
        use_cache: bool = True,
        rooms: Sequence[int] | None = None,
        step: Step | None = None,
        inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Start from `prompts`; in an encoder-decoder, from `sources` and prompts that begin with the start token.

        `rooms` has the maximum number of new tokens per row, `inputs` the extra inputs. `step` decodes from a static
        cache. Raise UsageError if a prompt or source is empty, too long or contains an unknown id.
        """
        check_ids(model, prompts, sources)
        self.model, self.head = model, model.head_of_last
        self.steps = 0  # tokens written per row
        self.room = max(rooms or (), default=0)
        device = next(model.parameters()).device
        self._rooms = None if rooms is None else torch.tensor(rooms, device=device)
        ids, real = padded_ids(prompts, device, left=True)
        fill = None if real is None else (~real).sum(dim=1, keepdim=True)
        extra, most = model.extra(inputs, len(ids)), most_positions(model, model.blueprint.last.side)
        self.text = PaddedRows(ids, fill, most=most, extra=extra)
        self.state: DecodeState | None = model.new_state(step is None) if use_cache and model.caches else None
        self._step = step
        if use_cache and self.state is None:
            announce(f"{last(model).keeps_nothing}; the whole text is recomputed for each new token")
        self._sources = None if sources is None else padded_sources(sources, device)
        self.hidden: Tensor | None = None  # [rows new d_model] of the tokens read last

    @property
    def ids(self) -> Tensor:
        """Prompts and written tokens, [rows time]; ids in padding are arbitrary."""
        return self.text.ids

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens, [rows time]; None without padding."""
        return self.text.real

    @property
    def rows(self) -> int:
        return self.text.rows

    def logits(self) -> Tensor:
        """Return the next-token logits, [rows vocab]."""
        return self.last_logits(1)[:, 0]

    def last_logits(self, count: int) -> Tensor:
        """Return the logits after the last `count` tokens, [rows count vocab]; the state must not contain them yet."""
        if self._sources is not None:
            self._encode(*self._sources)
        if self._step is not None and self.state is not None and self.state.length:
            ids = self.ids[:, -1:].clone(memory_format=torch.contiguous_format)  # of equal strides in every step
            return self._step(self.model, self._static(self.state), ids)
        self.hidden = hidden_of(self.model, self.text) if self.state is None else self._read(self.state)
        out: Tensor = self.head(self.hidden[:, -count:])
        return out

    def tokens(self) -> Tensor:
        """Return prompts and written tokens, [rows time], left-padded with PADDING."""
        real = self.real
        return self.ids if real is None else self.ids.masked_fill(~real, PADDING)

    def written(self) -> Tensor:
        """Return the number of tokens written to each row, [rows]."""
        return torch.full((self.rows,), self.steps, device=self.ids.device)

    def left(self) -> Tensor | None:
        """Return the number of tokens that each row may still write, [rows]; None without a limit."""
        return None if self._rooms is None else self._rooms - self.steps

    def append(self, tokens: Tensor) -> None:
        """Append tokens to each row; `tokens` is [rows] or [rows count]."""
        tokens = tokens.view(self.rows, -1)
        self.steps += tokens.shape[1]
        self.text = replace(self.text, ids=torch.cat((self.ids, tokens), dim=1))

    def ahead(self, count: int) -> int:
        """Return how many tokens, up to `count`, can be appended without changing how earlier positions are encoded."""
        stack, now = last(self.model), self.text.length
        if not stack.moves:
            return count
        regime = self.text.lengths(now)
        as_now = (more for more in range(count, 0, -1) if stack.same_regime(regime, self.text.lengths(now + more)))
        return next(as_now, 0)

    def rewind(self, count: int) -> None:
        """Remove the last `count` written tokens of each row. Append others before requesting logits.

        Raise UsageError, leaving everything unchanged, if the state cannot rewind.
        """
        if not 0 <= count <= self.steps:
            raise UsageError(f"cannot rewind {count} tokens; {self.steps} were written")
        length = self.text.length - count
        if self.state is not None and self.state.length > length:
            self.state.rewind(length)
        self.steps -= count
        self.text = replace(self.text, ids=self.ids[:, :length])

    def keep(self, rows: Tensor) -> None:
        """Continue with row `rows[i]` as row i; `rows` is [new_rows]."""
        if rows.tolist() == list(range(self.rows)):
            return
        self.text = self.text.chosen(rows)
        self._rooms = None if self._rooms is None else self._rooms[rows]
        if self._sources is not None:
            source, real = self._sources
            self._sources = source[rows], None if real is None else real[rows]
        if self.state is not None:
            self.state.reorder(rows)

    def _static(self, state: DecodeState) -> StaticState:
        """Return the state with room for the longest text, converted after the prompt was read."""
        if not isinstance(state, StaticState):
            self.state = state = StaticState(state, state.length + self.room, self.text.most)
            state.extra = self.text.extra
        return state

    def _encode(self, source: Tensor, real: Tensor | None) -> None:
        """Encode the sources before the first read."""
        memory, which = encoded(self.model, source, real, self.text.extra)
        self.text, self._sources = replace(self.text, memory=memory, memory_real=real), None
        if self.state is not None:
            self.state.sources = torch.tensor(which, device=source.device)

    def _read(self, state: DecodeState) -> Tensor:
        """Compute the hidden states of the tokens that are not in the state yet."""
        seen, length = state.length, self.text.length
        stack = last(self.model)
        if seen and stack.moves and not stack.same_regime(self.text.lengths(state.known), self.text.lengths(length)):
            announce("positions depend on the length of the text; the text is recomputed whenever they change")
            self.text = replace(self.text, memory=state.memory, memory_real=state.memory_real)
            self.state, seen = self.model.new_state(), 0
            self.state.sources = state.sources
            state = self.state
        if seen:
            return read_on(self.model, state, self.text)
        state.reserve(length + self.room)
        hidden = read_first(self.model, state, self.text)
        self.text = replace(self.text, memory=None, memory_real=None)  # now held by the state
        return hidden


def most_positions(model: Model, side: str) -> int | None:
    """Return the maximum number of positions in a stack, such as the size of a learned table; None if unlimited."""
    stack = model.stack(side)
    parts = [*stack.position, *(part for layer in stack.layers for part in layer.position)]  # type: ignore[union-attr]
    bounds = [part.length for part in parts if part.length is not None]
    return min(bounds, default=None)


def check_ids(model: Model, prompts: Sequence[Ids], sources: Sequence[Source] | None) -> None:
    """Raise UsageError for prompts or sources that the model cannot read, before anything is computed."""
    side = model.blueprint.last.side
    check_needed(model.special_inputs, dict.fromkeys(SPECIAL))
    _check(prompts, "prompt", most_positions(model, side), model.blueprint.last.vocab_size)
    if (sources is None) != (model.blueprint.encoder is None or model.blueprint.decoder is None):
        raise UsageError("an encoder-decoder needs sources; other models take none")
    if sources is not None and model.blueprint.encoder is not None:
        if len(sources) != len(prompts):
            raise UsageError(f"{len(prompts)} prompts and {len(sources)} sources; pass one source per prompt")
        _check(sources, "source", most_positions(model, "encoder"), model.blueprint.encoder.vocab_size)


def _check(rows: Sequence[Source], name: str, longest: int | None, vocab_size: int | None) -> None:
    if not rows:
        raise UsageError(f"no {name}s; pass at least one")
    for number, row in enumerate(rows, 1):
        if not len(row):
            raise PromptError(name, number, "is empty; generation starts from at least one token")
        if longest is not None and len(row) > longest:
            long = counted(len(row), "token")
            raise PromptError(name, number, f"has {long}, but this model reads at most {longest}; shorten it")
        if isinstance(row, np.ndarray):
            continue
        if min(row) < 0 or (vocab_size is not None and max(row) >= vocab_size):
            wrong = min(row) if min(row) < 0 else max(row)
            raise PromptError(name, number, f"contains the id {wrong}; ids are 0 to {(vocab_size or 0) - 1}")


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode without gradients within the block, and restore the mode afterwards."""
    before = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(before)
