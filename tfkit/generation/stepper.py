"""Token-by-token decoding with or without a decode state, used by every search."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.core.output import counted
from tfkit.functional.attend import announce
from tfkit.generation.logits.base import PADDING
from tfkit.generation.prompts import Ids, PromptError, Source
from tfkit.generation.reading import PaddedRows, encoded, hidden_of, last, read_first, read_on
from tfkit.generation.tokens import padded_ids, padded_sources
from tfkit.models import DecodeState, Model
from tfkit.models.call import check_needed
from tfkit.models.static import StaticState, Step

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
    ) -> None:
        """Start from `prompts`; in an encoder-decoder, from `sources` and prompts that begin with the start token.

        `rooms` has the maximum number of new tokens per row. `step` decodes from a static cache. Raise UsageError if a
        prompt or source is empty, too long or contains an unknown id.
        """
        check_ids(model, prompts, sources)
        self.model, self.head = model, model.head_of_last
        self.steps = 0  # tokens written per row
        self.room = max(rooms or (), default=0)
        device = next(model.parameters()).device
        self._rooms = None if rooms is None else torch.tensor(rooms, device=device)
        ids, real = padded_ids(prompts, device, left=True)
        fill = None if real is None else (~real).sum(dim=1, keepdim=True)
        self.text = PaddedRows(ids, fill, most=most_positions(model, model.blueprint.last.side))
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
        """Number of sequences."""
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
        return state

    def _encode(self, source: Tensor, real: Tensor | None) -> None:
        """Encode the sources before the first read."""
        memory, which = encoded(self.model, source, real)
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
