"""Base of the recurrent mixers, and their decode state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from einops import repeat
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tfkit.components.mixer.base import Mixer
from tfkit.core.component import Problem
from tfkit.core.context import Context
from tfkit.core.options import Width
from tfkit.core.shape import Shape


class RecurrentState:
    """The hidden state of a recurrence after the tokens so far: tensors [1 rows width]."""

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] = ()

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        self.parts = tuple(part.index_select(1, rows) for part in self.parts)

    def bytes(self) -> int:
        """Bytes of the state."""
        return sum(part.numel() * part.element_size() for part in self.parts)


class Recurrent(Mixer):
    """Reads tokens one after the other; in a layer that sees both ways, a second one reads from the end.

    In both directions, each returns half of the width, and the halves are concatenated. Padding is skipped.
    """

    class Config(Mixer.Config):
        d_hidden: Width | None = Field(
            None,
            description="width of what is carried from token to token, one way; projected to d_model where it differs; "
            "none: d_model, and half of it each way where both are read",
        )

        part: ClassVar[type[Recurrent]]

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.d_hidden is None and not shape.causal and shape.d_model % 2:
                yield Problem("d_hidden", f"d_model {shape.d_model} has no half for each way; give d_hidden")

        def state_widths(self, shape: Shape) -> tuple[int, ...]:
            ways = 1 if shape.causal else 2
            return (ways * (self.d_hidden or shape.d_model // ways),) * self.part.carried

    capabilities = frozenset({"causal", "bidirectional", "cache", "padding"})
    residual_outputs = ("output",)
    two_ways = True
    cell: ClassVar[type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]]
    carried: ClassVar[int] = 1  # vectors carried from token to token
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        ways = 1 if shape.causal else 2
        width = config.d_hidden or shape.d_model // ways
        self.forwards = self.cell(shape.d_model, width, batch_first=True)
        self.backwards = None if shape.causal else self.cell(shape.d_model, width, batch_first=True)
        self.output = nn.Identity() if ways * width == shape.d_model else nn.Linear(ways * width, shape.d_model)

    def new_state(self) -> RecurrentState:
        """Nothing read yet."""
        return RecurrentState()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        real = context.mask.real
        real = None if real is None else real[:, -x.shape[1] :]
        out = _read(self.forwards, x, real, context.state)
        if self.backwards is not None:
            turned = None if real is None else real.flip(1)
            end: RecurrentState | None = context.state  # of an encoder: nothing follows, and both ends are handed over
            start = None if end is None else RecurrentState()
            out = torch.cat((out, _read(self.backwards, x.flip(1), turned, start).flip(1)), dim=-1)
            if end is not None and start is not None:
                end.parts = tuple(torch.cat(ways, dim=-1) for ways in zip(end.parts, start.parts, strict=True))
        merged: Tensor = self.output(out)
        return merged


def _read(cell: nn.RNNBase, x: Tensor, real: Tensor | None, state: RecurrentState | None) -> Tensor:
    """The outputs [batch time width], those of padding zero: real tokens are read first, and put back."""
    if state is not None:
        return _continued(cell, x, real, state)
    if real is None:
        out: Tensor = cell(x)[0]
        return out
    order = _real_first(real)
    out = cell(_taken(x, order))[0]
    return _taken(out, order.argsort(dim=1)) * real[..., None]


def _continued(cell: nn.RNNBase, x: Tensor, real: Tensor | None, state: RecurrentState) -> Tensor:
    """The same after a state, which becomes that after each row's last real token."""
    before = _unpacked(state.parts)
    if real is None:
        out, after = cell(x, before)
        state.parts = _parts(after)
        return out  # type: ignore[no-any-return]
    order, counts = _real_first(real), real.sum(dim=1)
    packed = pack_padded_sequence(
        _taken(x, order), counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )  # a row of padding alone is read by one token, which is then forgotten
    given, after = cell(packed, before)
    out = pad_packed_sequence(given, batch_first=True, total_length=x.shape[1])[0]
    some = (counts > 0)[None, :, None]
    held = _parts(before) if before is not None else tuple(torch.zeros_like(part) for part in _parts(after))
    state.parts = tuple(torch.where(some, new, old) for new, old in zip(_parts(after), held, strict=True))
    return _taken(out, order.argsort(dim=1)) * real[..., None]


def _real_first(real: Tensor) -> Tensor:
    """Places [batch time] of the real tokens in order, then those of padding."""
    return (~real).int().argsort(dim=1, stable=True)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, repeat(places, "batch time -> batch time width", width=x.shape[-1]))


def _parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _unpacked(parts: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...] | None:
    """A state as a cell takes it: a tuple of two, a tensor, or None at the start."""
    return None if not parts else parts if len(parts) > 1 else parts[0]
