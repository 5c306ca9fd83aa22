"""Mamba: a state space whose steps depend on what is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import einsum
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.mixer.base import Mixer
from tfkit.core.component import Problem
from tfkit.core.context import Context
from tfkit.core.options import Norm, Width, check_norm
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.convolve import Columns, causal_convolution
from tfkit.functional.precision import wide
from tfkit.functional.scan import linear_scan

SMALLEST, LARGEST = 1e-3, 0.1  # steps that training begins with


@register("mixer", "mamba")
class Mamba(Mixer):
    """output((C_t h_t + D x_t) * silu(gate)), h_t = exp(dt A) h_(t-1) + dt B_t x_t (Gu and Dao 2023, arXiv 2312.00752).

    x is the input, widened by `expand`, after a short causal convolution and a silu; dt, B and C are made from it.
    """

    class Config(Mixer.Config):
        d_state: Width = Field(16, description="numbers that each channel carries from token to token")
        d_conv: Width = Field(4, description="tokens that the convolution reads")
        expand: Width = Field(2, description="inner width as a multiple of d_model")
        rank: Width | None = Field(
            None, description="width that the sizes of steps are made from; none: d_model / 16, rounded up"
        )
        norm: Norm | None = Field(None, description="norm of dt's input, B and C (Jamba); none: as they are")
        bias: bool = Field(False, description="biases of the projections in and out")
        conv_bias: bool = Field(True, description="a bias of the convolution")

        def check(self, shape: Shape) -> Iterator[Problem]:
            for size in {self.rank or math.ceil(shape.d_model / 16), self.d_state}:
                yield from check_norm("norm", self.norm, size)

    capabilities = frozenset({"causal", "cache", "padding"})
    residual_outputs = ("output",)
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
        self.step_bias = nn.Parameter(_first_steps(width))  # no init makes it zero
        self.log_decay = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))  # log(-A)
        self.skip = nn.Parameter(torch.ones(width))  # D
        self.output = nn.Linear(width, shape.d_model, bias=config.bias)

    def new_state(self) -> Columns:
        """Nothing read yet."""
        return Columns()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        state: Columns | None = context.state
        real = context.mask.real
        kept = None if real is None else real[:, -x.shape[1] :, None].to(x.dtype)  # padding leaves the state at zero
        inner = self.input(x) if kept is None else self.input(x) * kept
        inner = F.silu(causal_convolution(inner, self.convolution.weight[:, 0], self.convolution.bias, state))
        inner = inner if kept is None else inner * kept
        out = self._carried(inner, state) + self.skip * inner
        merged: Tensor = self.output(out * F.silu(self.gate(x)))
        return merged

    def _carried(self, x: Tensor, state: Columns | None) -> Tensor:
        """C_t h_t, [batch time width]."""
        selected = self.selection(x).split(self.sizes, dim=-1)
        given, read = wide(self.given_norm(selected[1])), wide(self.read_norm(selected[2]))
        size = wide(F.softplus(self.step(self.step_norm(selected[0])) + self.step_bias))
        decay = torch.exp(-wide(self.log_decay).exp() * size[..., None])
        added = einsum(size * wide(x), given, "batch time width, batch time state -> batch time width state")
        held = linear_scan(decay, added, None if state is None else state.carried)
        if state is not None:
            state.carried = held[:, -1]
        out: Tensor = einsum(held, read, "batch time width state, batch time state -> batch time width")
        return out.to(x.dtype)


def _first_steps(width: int) -> Tensor:
    """What softplus makes steps of, spread evenly between the logarithms of the smallest and the largest."""
    spread = torch.rand(width) * (math.log(LARGEST) - math.log(SMALLEST)) + math.log(SMALLEST)
    return torch.log(torch.expm1(spread.exp()))
