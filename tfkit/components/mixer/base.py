"""Base class of mixers; recurrences, Fourier mixing, short convolutions, Mamba and Mamba-2."""

# Axes: batch, time, width (channels of the mixer, doubled if bidirectional), state (Mamba), head, dim (channels of a
# head), group (of heads), d_model.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from pydantic import BeforeValidator, Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tfkit.components.sublayer import Sublayer
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.options import Heads, NonNegativeFloat, Norm, PositiveFloat, Width, as_tuple, check_norm, part_option
from tfkit.core.registry import register
from tfkit.functional.kernel import Columns, causal_convolution, decayed_sum, linear_scan
from tfkit.functional.view import wide


class Mixer(Sublayer):
    """Mixes tokens without attention; its direction follows the mask (`shape.causal`)."""


class RecurrentState:
    """Hidden state of a recurrence after the tokens so far: tensors [1 rows width]."""

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] = ()

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        self.parts = tuple(part.index_select(1, rows) for part in self.parts)

    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.parts)


class Recurrent(Mixer):
    """Base class of recurrences. Padding is skipped.

    Bidirectional layers run a second recurrence backwards and concatenate the outputs of both.
    """

    class Config(Mixer.Config):
        d_hidden: Width | None = Field(
            None,
            description="width of the hidden state per direction, projected to d_model if it differs; "
            "none: d_model, or half of it in bidirectional layers",
        )

        part: ClassVar[type[Recurrent]]

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.d_hidden is None and not shape.causal and shape.d_model % 2:
                yield Problem(
                    "d_hidden",
                    f"d_model {shape.d_model} is odd and cannot be split between two directions; set d_hidden",
                )

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
        return RecurrentState()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        real = context.mask.real
        real = None if real is None else real[:, -x.shape[1] :]
        out = _read(self.forwards, x, real, context.state)  # [batch time width]
        if self.backwards is not None:
            turned = None if real is None else real.flip(1)
            end: RecurrentState | None = context.state  # set if the final states of an encoder are passed on
            start = None if end is None else RecurrentState()
            back = _read(self.backwards, x.flip(1), turned, start).flip(1)  # [batch time width]
            out = torch.cat((out, back), dim=-1)  # [batch time 2*width]
            if end is not None and start is not None:
                end.parts = tuple(torch.cat(ways, dim=-1) for ways in zip(end.parts, start.parts, strict=True))
        merged: Tensor = self.output(out)  # [batch time d_model]
        return merged


def _read(cell: nn.RNNBase, x: Tensor, real: Tensor | None, state: RecurrentState | None) -> Tensor:
    """Run the cell over real tokens, moved to the front and back. Return [batch time width], zero for padding."""
    if state is not None:
        return _continued(cell, x, real, state)
    if real is None:
        out: Tensor = cell(x)[0]
        return out
    order = _real_first(real)
    out = cell(_taken(x, order))[0]
    return _taken(out, order.argsort(dim=1)) * real[..., None]


def _continued(cell: nn.RNNBase, x: Tensor, real: Tensor | None, state: RecurrentState) -> Tensor:
    """Run the cell from a state, and update the state to that after each row's last real token."""
    # a cell's state is a tuple for LSTM, else a tensor; None at the start
    before = (state.parts if len(state.parts) > 1 else state.parts[0]) if state.parts else None
    if real is None:
        out: Tensor
        out, after = cell(x, before)
        state.parts = _parts(after)
        return out
    order, counts = _real_first(real), real.sum(dim=1)
    packed = pack_padded_sequence(
        _taken(x, order), counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )  # padding-only rows read one token, whose state is discarded below
    given, after = cell(packed, before)
    out = pad_packed_sequence(given, batch_first=True, total_length=x.shape[1])[0]
    some = (counts > 0)[None, :, None]
    held = _parts(before) if before is not None else tuple(torch.zeros_like(part) for part in _parts(after))
    state.parts = tuple(torch.where(some, new, old) for new, old in zip(_parts(after), held, strict=True))
    return _taken(out, order.argsort(dim=1)) * real[..., None]


def _real_first(real: Tensor) -> Tensor:
    """Return an order [batch time] with real tokens first, then padding."""
    return (~real).int().argsort(dim=1, stable=True)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, repeat(places, "batch time -> batch time width", width=x.shape[-1]))


def _parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@register("mixer", "lstm")
class LSTM(Recurrent):
    """c_t = f_t c_{t-1} + i_t tanh(W [x_t h_{t-1}]), h_t = o_t tanh(c_t) (Hochreiter and Schmidhuber 1997)."""

    cell = nn.LSTM
    carried = 2  # h and c


@register("mixer", "gru")
class GRU(Recurrent):
    """h_t = (1 - z_t) n_t + z_t h_{t-1}, n_t = tanh(W x_t + r_t U h_{t-1}) (Cho et al. 2014, arXiv 1406.1078)."""

    cell = nn.GRU


@register("mixer", "rnn")
class RNN(Recurrent):
    """h_t = tanh(W x_t + U h_{t-1} + b) (Elman 1990, Finding Structure in Time)."""

    cell = nn.RNN


@register("mixer", "fourier")
class Fourier(Mixer):
    """Re F_time(F_width(x)), F being the Fourier transform (Lee-Thorp et al. 2021, arXiv 2105.03824).

    Every token mixes with every other, including padding, so padded batches are rejected.
    """

    capabilities = frozenset({"bidirectional", "compile", "export"})

    def forward(self, x: Tensor, context: Context) -> Tensor:
        # inference engines compute a general DFT with an accuracy of only three digits
        if torch.compiler.is_exporting():
            real = x.double()
            (cosine, sine), (across, turned) = (_waves(size, real) for size in x.shape[1:])
            mixed = cosine @ real @ across - sine @ real @ turned  # [batch time d_model]
        else:
            mixed = torch.fft.fft2(wide(x), dim=(1, 2)).real  # [batch time d_model]
        return mixed.to(x.dtype)


def _waves(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [size size] of a DFT; angles are reduced before rounding."""
    place = torch.arange(size, device=like.device)
    count = place[-1:] + 1  # the size as a tensor, so that exported graphs accept any size
    angle = (place[:, None] * place % count).to(like.dtype) * (2 * math.pi / count)
    return angle.cos(), angle.sin()


class Convolving(Mixer):
    """Base of mixers that begin with a short causal convolution."""

    pads_first = True
    residual_outputs = ("output",)

    def new_state(self) -> Columns:
        return Columns()


@register("mixer", "short_convolution")
class ShortConvolution(Convolving):
    """output(C x * convolve(B x * value(x))), a depthwise convolution over `size` tokens (LFM2, arXiv 2511.23404)."""

    class Config(Mixer.Config):
        size: Width = Field(3, description="width of the convolution in tokens, up to and including the current one")
        bias: bool = Field(False, description="add biases to the projections and the convolution")

    capabilities = frozenset({"causal", "cache", "padding", "compile", "export"})
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        width = shape.d_model
        self.input_gate = nn.Linear(width, width, bias=config.bias)
        self.output_gate = nn.Linear(width, width, bias=config.bias)
        self.value = nn.Linear(width, width, bias=config.bias)
        self.convolution = nn.Conv1d(width, width, config.size, groups=width, bias=config.bias)
        self.output = nn.Linear(width, width, bias=config.bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        mixed, real = self.input_gate(x) * self.value(x), context.mask.real  # [batch time width]
        if real is not None:
            mixed = mixed * real[:, -x.shape[1] :, None]  # as if nothing preceded the text
        convolved = causal_convolution(mixed, self.convolution.weight[:, 0], self.convolution.bias, context.state)
        merged: Tensor = self.output(self.output_gate(x) * convolved)  # [batch time d_model]
        return merged


Limits = Annotated[tuple[NonNegativeFloat, PositiveFloat], BeforeValidator(as_tuple)]
SMALLEST, LARGEST = 1e-3, 0.1  # range of the initial step sizes


@register("mixer", "mamba")
class Mamba(Convolving):
    """output((C_t h_t + D x_t) * silu(gate)), h_t = exp(dt A) h_(t-1) + dt B_t x_t (Gu and Dao 2023, arXiv 2312.00752).

    x is the input, widened by `expand`, after a short causal convolution and a silu; dt, B and C are projections of x.
    """

    class Config(Mixer.Config):
        d_state: Width = Field(16, description="state size per channel")
        d_conv: Width = Field(4, description="width of the convolution in tokens")
        expand: Width = Field(2, description="inner width as a multiple of d_model")
        rank: Width | None = Field(
            None, description="rank of the projection to step sizes dt; none: d_model / 16, rounded up"
        )
        norm: Norm | None = Field(None, description="norm of dt's input, B and C (Jamba); none: no norm")
        bias: bool = Field(False, description="add biases to the input and output projections")
        conv_bias: bool = Field(True, description="add a bias to the convolution")

        def check(self, shape: Shape) -> Iterator[Problem]:
            for size in {self.rank or math.ceil(shape.d_model / 16), self.d_state}:
                yield from check_norm("norm", self.norm, size)

    capabilities = frozenset({"causal", "cache", "padding"})
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        width, state = config.expand * shape.d_model, config.d_state
        rank = config.rank or math.ceil(shape.d_model / 16)
        self.sizes = (rank, state, state)
        self.input = nn.Linear(shape.d_model, width, bias=config.bias)
        self.gate = nn.Linear(shape.d_model, width, bias=config.bias)
        self.convolution = nn.Conv1d(width, width, config.d_conv, groups=width, bias=config.conv_bias)
        self.selection = nn.Linear(width, sum(self.sizes), bias=False)
        self.step_norm, self.given_norm, self.read_norm = (
            nn.Identity() if config.norm is None else config.norm.build(Shape(size)) for size in self.sizes
        )
        self.step = nn.Linear(rank, width, bias=False)
        self.step_bias = nn.Parameter(first_steps(width))  # not zeroed by init
        self.log_decay = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))  # log(-A)
        self.skip = nn.Parameter(torch.ones(width))  # D
        self.output = nn.Linear(width, shape.d_model, bias=config.bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        state: Columns | None = context.state
        real = context.mask.real
        kept = None if real is None else real[:, -x.shape[1] :, None].to(x.dtype)  # padding leaves the state at zero
        inner = self.input(x) if kept is None else self.input(x) * kept  # [batch time width]
        inner = F.silu(causal_convolution(inner, self.convolution.weight[:, 0], self.convolution.bias, state))
        inner = inner if kept is None else inner * kept
        out = self._carried(inner, state) + self.skip * inner  # [batch time width]
        merged: Tensor = self.output(out * F.silu(self.gate(x)))  # [batch time d_model]
        return merged

    def _carried(self, x: Tensor, state: Columns | None) -> Tensor:
        """Compute C_t h_t, [batch time width]."""
        selected = self.selection(x).split(self.sizes, dim=-1)
        given, read = wide(self.given_norm(selected[1])), wide(self.read_norm(selected[2]))
        size = wide(F.softplus(self.step(self.step_norm(selected[0])) + self.step_bias))
        decay = torch.exp(-wide(self.log_decay).exp() * size[..., None])  # [batch time width state]
        added = einsum(size * wide(x), given, "batch time width, batch time state -> batch time width state")
        held = linear_scan(decay, added, None if state is None else state.carried)  # [batch time width state]
        if state is not None:
            state.carried = held[:, -1]
        out: Tensor = einsum(held, read, "batch time width state, batch time state -> batch time width")
        return out.to(x.dtype)


@register("mixer", "mamba2")
class Mamba2(Convolving):
    """output(norm((h_t C_t + D x_t) silu(gate))), h_t = exp(dt A) h_(t-1) + dt x_t B_tᵀ (Dao and Gu 2024, 2405.21060).

    x, B and C are projections after a short causal convolution and a silu. Each head has one step size dt, A and D, and
    the heads of a group share B and C.
    """

    class Config(Mixer.Config):
        d_state: Width = Field(128, description="state size per channel")
        d_conv: Width = Field(4, description="width of the convolution in tokens")
        head_dim: Width = Field(64, description="channels per head, which share a decay")
        num_heads: Heads | None = Field(None, description="heads; none: expand * d_model / head_dim")
        expand: Width | None = Field(None, description="inner width as a multiple of d_model; none: 2, or by num_heads")
        groups: Heads = Field(1, description="groups of heads that share B and C")
        norm: Norm | None = part_option("rms_norm", "norm of the gated outputs; none: no norm")
        norm_first: bool = Field(False, description="normalize before the gate instead of after it")
        step_limits: Limits | None = Field(None, description="smallest and largest step size dt; none: no limits")
        bias: bool = Field(False, description="add biases to the input and output projections")
        conv_bias: bool = Field(True, description="add a bias to the convolution")

        def heads(self, shape: Shape) -> int:
            return self.num_heads or (self.expand or 2) * shape.d_model // self.head_dim

        def check(self, shape: Shape) -> Iterator[Problem]:
            inner = (self.expand or 2) * shape.d_model
            if self.num_heads is None and inner % self.head_dim:
                text = f"heads of {self.head_dim} channels do not divide the inner width {inner}"
                yield Problem("head_dim", f"{text}; use a divisor, or set num_heads")
            elif self.heads(shape) % self.groups:
                text = f"{self.groups} groups do not divide {self.heads(shape)} heads"
                yield Problem("groups", f"{text}; use a divisor")
            if self.num_heads is not None and self.expand is not None:
                yield Problem("expand", "has no effect with num_heads; omit one of them")
            if self.norm is None and self.norm_first:
                yield Problem("norm_first", "has no effect without norm; set norm too")
            if self.step_limits is not None and self.step_limits[0] >= self.step_limits[1]:
                yield Problem("step_limits", f"{list(self.step_limits)}: the first must be below the second")
            yield from check_norm("norm", self.norm, self.heads(shape) * self.head_dim)

    capabilities = frozenset({"causal", "cache", "padding", "packing"})
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        heads, shared = config.heads(shape), config.groups * config.d_state
        width = heads * config.head_dim
        self.sizes = [width, shared, shared]  # of x, B and C
        mixed = sum(self.sizes)
        self.input = nn.Linear(shape.d_model, mixed, bias=config.bias)
        self.gate = nn.Linear(shape.d_model, width, bias=config.bias)
        self.step = nn.Linear(shape.d_model, heads, bias=config.bias)
        self.convolution = nn.Conv1d(mixed, mixed, config.d_conv, groups=mixed, bias=config.conv_bias)
        self.step_bias = nn.Parameter(first_steps(heads))  # not zeroed by init
        self.log_decay = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())  # log(-A)
        self.skip = nn.Parameter(torch.ones(heads))  # D
        self.norm = nn.Identity() if config.norm is None else config.norm.build(Shape(width))
        self.output = nn.Linear(width, shape.d_model, bias=config.bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        state: Columns | None = context.state
        real, segments = context.mask.real, context.mask.segments
        kept = None if real is None else real[:, -x.shape[1] :, None].to(x.dtype)
        texts = None if segments is None else segments[0]  # [batch time]
        inner = self.input(x) if kept is None else self.input(x) * kept  # [batch time width+2*group*state]
        inner = F.silu(causal_convolution(inner, self.convolution.weight[:, 0], self.convolution.bias, state, texts))
        dims = (self.config.head_dim, self.config.d_state, self.config.d_state)
        value, given, read = (  # [batch time head dim], [batch time group state] twice
            rearrange(part, "batch time (head dim) -> batch time head dim", dim=dim)
            for part, dim in zip(torch.split(wide(inner), self.sizes, dim=-1), dims, strict=True)
        )
        size = F.softplus(wide(self.step(x)) + self.step_bias)  # [batch time head]
        size = size if self.config.step_limits is None else size.clamp(*self.config.step_limits)
        size = size if kept is None else size * kept  # padding neither adds to the state nor lets it decay
        decay = -wide(self.log_decay).exp() * size  # [batch time head]
        before = None if state is None else state.carried
        out, held = decayed_sum(read, given, size[..., None] * value, decay, texts, before)  # [batch time head dim]
        if state is not None:
            state.carried = held
        out = rearrange(out + self.skip[:, None] * value, "batch time head dim -> batch time (head dim)").to(x.dtype)
        gate = F.silu(self.gate(x))  # [batch time width]
        merged: Tensor = self.output(self.norm(out) * gate if self.config.norm_first else self.norm(out * gate))
        return merged  # [batch time d_model]


def first_steps(width: int) -> Tensor:
    """Return initial step biases: the inverse softplus of log-uniform step sizes."""
    spread = torch.rand(width) * (math.log(LARGEST) - math.log(SMALLEST)) + math.log(SMALLEST)
    return torch.log(torch.expm1(spread.exp()))
