"""Delta rules: a memory of keys and values per head that decays, and is corrected where a key is written again."""

# Axes: batch, time, head (of values; those of queries and keys are repeated), dim (channels of a head), d_model.

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.mixer.base import Convolving, first_steps
from tfkit.components.sublayer import check_heads
from tfkit.core.component import Problem, Shape, Unlearnable
from tfkit.core.context import Context
from tfkit.core.options import Activation, Heads, Norm, Width, check_norm, part_option
from tfkit.core.registry import register
from tfkit.functional.delta import delta_rule
from tfkit.functional.kernel import Columns, causal_convolution
from tfkit.functional.view import wide

SPLIT = "batch time (head dim) -> batch head time dim"
MERGE = "batch head time dim -> batch time (head dim)"
EPS = 1e-6  # added to the squared length of queries and keys


class DeltaRule(Convolving):
    """output(norm(o) * activation(gate)), o_t = S_tᵀ q_t, S_t = (I - b_t k_t k_tᵀ) diag(a_t) S_(t-1) + b_t k_t v_tᵀ.

    q, k and v are projections after a short causal convolution and a silu; q and k then have length 1, q divided by
    sqrt(head_dim). The decay a_t = exp(-A softplus(step_t)) and the write strength b_t = sigmoid(strength_t) are
    projections too.
    """

    class Config(Convolving.Config):
        num_heads: Heads = Field(description="heads of queries and keys")
        head_dim: Width | None = Field(None, description="width of a query or key head; none: d_model / num_heads")
        num_value_heads: Heads | None = Field(
            None, description="value heads, a multiple of num_heads, which share queries and keys; none: num_heads"
        )
        value_dim: Width | None = Field(None, description="width of a value head; none: that of a key head")
        d_conv: Width = Field(4, description="width of the convolution in tokens")
        norm: Norm = part_option("rms_norm", "norm of each head's output, before the gate")
        activation: Activation = part_option("silu", "activation of the output gate")
        reflects: bool = Field(
            False, description="write strengths up to 2 instead of 1, so that a write may invert what it replaces"
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            undivided = [*check_heads(self.num_heads, self.head_dim, shape.d_model)]
            yield from undivided
            if not undivided and self.widths(shape)[0] == 1:
                yield Unlearnable("", "queries and keys of one channel have only a sign; use wider heads")
            if self.num_value_heads is not None and self.num_value_heads % self.num_heads:
                text = f"{self.num_heads} heads do not divide {self.num_value_heads} value heads; use a multiple"
                yield Problem("num_value_heads", text)
            yield from check_norm("norm", self.norm, self.widths(shape)[1])

        def axes(self, shape: Shape) -> Mapping[str, int]:
            return {"head": self.num_value_heads or self.num_heads, "group": self.num_heads}

        def widths(self, shape: Shape) -> tuple[int, int]:
            """Return the widths of a key head and of a value head."""
            width = self.head_dim or max(1, shape.d_model // self.num_heads)
            return width, self.value_dim or width

    capabilities = frozenset({"causal", "cache", "padding", "packing"})
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.dim, value_dim = config.widths(shape)
        self.heads = config.num_value_heads or config.num_heads
        self.sizes = (config.num_heads * self.dim,) * 2 + (self.heads * value_dim,)
        self.query, self.key, self.value = (nn.Linear(shape.d_model, size, bias=False) for size in self.sizes)
        self.query_convolution, self.key_convolution, self.value_convolution = (
            nn.Conv1d(size, size, config.d_conv, groups=size, bias=False) for size in self.sizes
        )
        channels = self.channels()
        self.step = self.projection(channels)
        self.step_bias = nn.Parameter(first_steps(channels))  # not zeroed by init
        self.log_decay = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())  # log A
        self.strength = nn.Linear(shape.d_model, self.heads, bias=False)
        self.gate = self.projection(self.sizes[2])
        self.activation = config.activation.build(Shape(value_dim))
        self.norm = config.norm.build(Shape(value_dim))
        self.output = nn.Linear(self.sizes[2], shape.d_model, bias=False)

    def channels(self) -> int:
        """Return the number of decays per token."""
        return self.heads

    def projection(self, width: int) -> nn.Module:
        """Return a map from d_model to the decays or the gate."""
        return nn.Linear(self.shape.d_model, width, bias=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        state: Columns | None = context.state
        real, segments = context.mask.real, context.mask.segments
        texts = None if segments is None else segments[0]  # [batch time]
        kept = None if real is None else real[:, None, -x.shape[1] :, None]  # [batch 1 time 1]
        x = x if kept is None else x * kept[:, 0]  # padding adds nothing to the state
        query, key, value = self._read(x, state, texts)
        step = rearrange(wide(self.step(x)) + self.step_bias, SPLIT, head=self.heads)  # [batch head time 1|dim]
        decay = -wide(self.log_decay).exp()[:, None, None] * F.softplus(step)  # log a
        strength = rearrange(wide(self.strength(x)), SPLIT, dim=1).sigmoid()  # b: [batch head time 1]
        strength = 2 * strength if self.config.reflects else strength
        if kept is not None:
            decay, strength = decay * kept, strength * kept  # nor does the state decay
        out, carried = delta_rule(query, key, value, decay, strength, texts, None if state is None else state.carried)
        if state is not None:
            state.carried = carried
        gate = rearrange(self.gate(x), SPLIT, head=self.heads)  # [batch head time dim]
        out = self.norm(out.to(x.dtype)) * self.activation(gate)
        merged: Tensor = self.output(rearrange(out, MERGE))  # [batch time d_model]
        return merged

    def _read(self, x: Tensor, state: Columns | None, texts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of length 1 for each value head, and values, all [batch head time dim]."""
        mixed = torch.cat((self.query(x), self.key(x), self.value(x)), dim=-1)
        kernels = (self.query_convolution.weight, self.key_convolution.weight, self.value_convolution.weight)
        mixed = F.silu(wide(causal_convolution(mixed, torch.cat(kernels)[:, 0], None, state, texts)))
        query, key, value = torch.split(mixed, list(self.sizes), dim=-1)
        query, key = (rearrange(each, SPLIT, dim=self.dim) for each in (query, key))
        query, key = _unit(query) * self.dim**-0.5, _unit(key)
        times, again = self.heads // self.config.num_heads, "batch head time dim -> batch (head times) time dim"
        query, key = repeat(query, again, times=times), repeat(key, again, times=times)
        return query, key, rearrange(value, SPLIT, head=self.heads)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + EPS)


@register("mixer", "gated_delta_net")
class GatedDeltaNet(DeltaRule):
    """A delta rule with one decay a_t per head (Yang et al. 2024, arXiv 2412.06464)."""


@register("mixer", "kimi_delta")
class KimiDelta(DeltaRule):
    """A delta rule with one decay a_t per channel of a key (Kimi Team 2025, arXiv 2510.26692)."""

    class Config(DeltaRule.Config):
        activation: Activation = part_option("sigmoid", "activation of the output gate")
        rank: Width | None = Field(None, description="rank of the projections to decays and gate; none: head_dim")

    config: Config

    def channels(self) -> int:
        return self.heads * self.dim

    def projection(self, width: int) -> nn.Module:
        rank = self.config.rank or self.dim
        return nn.Sequential(nn.Linear(self.shape.d_model, rank, bias=False), nn.Linear(rank, width, bias=False))
