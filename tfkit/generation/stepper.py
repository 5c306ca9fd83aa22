"""Decoding token by token, the past kept in a decode state or computed anew: what every search is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.generation.logits.base import PADDING
from tfkit.models import DecodeState, Model

Ids = Sequence[int]


class Stepper:
    """Logits of the next token of every row. Prompts of unlike length are padded on the left, sources on the right."""

    def __init__(
        self, model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None = None, use_cache: bool = True
    ) -> None:
        """`prompts` are what the decoder begins with (the start token, where there are two), `sources` what is encoded.

        Raises UsageError for a prompt or a source that is empty, too long, or holds an unknown id.
        """
        check_ids(model, prompts, sources)
        self.model = model
        self.steps = 0  # tokens written on each row
        device = next(model.parameters()).device
        self.ids, self.real = _padded(prompts, device, left=True)  # [rows time], real None where nothing is padded
        self.state: DecodeState | None = model.new_state() if use_cache and model.caches else None
        self.source: Tensor | None = None
        self.source_real: Tensor | None = None
        if sources is not None:
            self.source, self.source_real = _padded(sources, device, left=False)
        self.memory: Tensor | None = None  # [rows source d_model] of the encoder, where no state keeps it

    @property
    def rows(self) -> int:
        """How many sequences are being written."""
        return self.ids.shape[0]

    def logits(self) -> Tensor:
        """Logits of the token that comes next, [rows vocab]."""
        seen = 0 if self.state is None else self.state.length
        hidden = self._hidden(self.ids[:, seen:], self._positions()[:, seen:])
        if self.model.head is None:
            raise UsageError("this model has no head that predicts tokens; give it one, such as head: language_model")
        out: Tensor = self.model.head(hidden[:, -1:])
        return out[:, 0]

    def tokens(self) -> Tensor:
        """Each row's prompt and what was written behind it, [rows time], PADDING before them."""
        return self.ids if self.real is None else self.ids.masked_fill(~self.real, PADDING)

    def written(self) -> Tensor:
        """How many of the last tokens of each row were written, [rows]."""
        return torch.full((self.rows,), self.steps, device=self.ids.device)

    def append(self, tokens: Tensor) -> None:
        """Add one token to each row; `tokens` is [rows]."""
        self.steps += 1
        self.ids = torch.cat((self.ids, tokens[:, None]), dim=1)
        if self.real is not None:
            self.real = torch.cat((self.real, self.real.new_ones(self.rows, 1)), dim=1)

    def keep(self, rows: Tensor) -> None:
        """Go on with row `rows[i]` as row i; `rows` is [new_rows]."""
        for name in ("ids", "real", "source", "source_real", "memory"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))
        if self.state is not None:
            self.state.reorder(rows)

    def _positions(self) -> Tensor:
        """Places [rows|1 time], counted from each row's first real token."""
        if self.real is None:
            return torch.arange(self.ids.shape[1], device=self.ids.device)[None]
        return (self.real.long().cumsum(dim=1) - 1).clamp(min=0)

    def _hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [rows new d_model] of the tokens that the state has not seen."""
        if self.source is None:
            out = self.model(
                input_ids=ids, attention_mask=self.real, position_ids=positions, state=self.state, with_heads=False
            )
        else:
            encoded = self.memory is not None if self.state is None else self.state.length > 0
            out = self.model(
                input_ids=None if encoded else self.source,
                attention_mask=self.source_real,
                encoder_hidden_states=self.memory,
                decoder_input_ids=ids,
                decoder_attention_mask=self.real,
                decoder_position_ids=positions,
                state=self.state,
                with_heads=False,
            )
            self.memory = out.memory if self.state is None else None
        hidden: Tensor = out.hidden
        return hidden


def most_positions(model: Model, side: str) -> int | None:
    """How many tokens the positions of a stack can tell apart; None: any number (learned positions have a bound)."""
    stack = model.stack(side)
    parts = [*stack.position, *(part for layer in stack.layers for part in layer.position)]  # type: ignore[union-attr]
    bounds = [part.length for part in parts if isinstance(getattr(part, "length", None), int)]
    return min(bounds, default=None)


def check_ids(model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None) -> None:
    """Raise UsageError for what the model cannot read, before anything is computed."""
    side = model.blueprint.last.side
    _check(prompts, "prompt", most_positions(model, side), model.blueprint.last.vocab_size)
    if (sources is None) != (model.blueprint.encoder is None or model.blueprint.decoder is None):
        raise UsageError("an encoder-decoder needs sources, and nothing else does")
    if sources is not None and model.blueprint.encoder is not None:
        if len(sources) != len(prompts):
            raise UsageError(f"{len(prompts)} prompts and {len(sources)} sources: there is one of each a row")
        _check(sources, "source", most_positions(model, "encoder"), model.blueprint.encoder.vocab_size)


def _check(rows: Sequence[Ids], name: str, longest: int | None, vocab_size: int | None) -> None:
    if not rows:
        raise UsageError(f"there is no {name} to start from")
    for number, row in enumerate(rows, 1):
        if not len(row):
            raise UsageError(f"{name} {number} is empty, so that there is no token to begin with")
        if longest is not None and len(row) > longest:
            raise UsageError(f"{name} {number} has {len(row)} tokens; this model reads at most {longest}; shorten it")
        if min(row) < 0 or (vocab_size is not None and max(row) >= vocab_size):
            wrong = min(row) if min(row) < 0 else max(row)
            raise UsageError(f"{name} {number} holds the id {wrong}; ids go from 0 to {(vocab_size or 0) - 1}")


def _padded(rows: Sequence[Ids], device: torch.device, left: bool) -> tuple[Tensor, Tensor | None]:
    """Ids [rows longest], and which are real, None where all are; what fills up is never looked at."""
    longest = max(map(len, rows))
    fill = [longest - len(row) for row in rows]
    ids = [[0] * n + list(row) if left else list(row) + [0] * n for n, row in zip(fill, rows, strict=True)]
    if not any(fill):
        return torch.tensor(ids, device=device), None
    real = [[False] * n + [True] * (longest - n) if left else [True] * (longest - n) + [False] * n for n in fill]
    return torch.tensor(ids, device=device), torch.tensor(real, device=device)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients within the block; the model's mode is as before behind it."""
    before = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(before)
