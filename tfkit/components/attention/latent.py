"""Multi-head latent attention: keys and values are projected from a narrow latent, which is cached instead."""

# Axes: batch, time, head, query and key (tokens), dim (channels of a head without position), rotary (rotated channels),
# rank (channels of the latent), value_dim, d_model.

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import einsum, rearrange, repeat
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.attention.base import Attention, KeyValueState
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.inputs import OF_LAYERS
from tfkit.core.options import (
    Bias,
    Dropout,
    Heads,
    Norm,
    Scale,
    Width,
    check_bias,
    check_norm,
    has_bias,
    part_option,
    scale_factor,
)
from tfkit.core.registry import register
from tfkit.functional.attend import Scores, attend, reference

PROJECTIONS = ("query", "query_down", "query_up", "key_value_down", "output")
SPLIT = "batch time (head dim) -> batch head time dim"
JOIN = "batch head time dim -> batch time (head dim)"


@register("attention", "latent")
class Latent(Attention):
    """Multi-head latent attention (DeepSeek-V2 2024, arXiv 2405.04434, section 2.1).

    [k_h | v_h] = W_up_h norm(c), c = W_down x. The last channels of each query are rotated and compared to a rotated
    key W_rotary x, which all heads share. The decode state holds norm(c) and the rotary key.
    """

    class Config(Attention.Config):
        num_heads: Heads = Field(description="heads")
        kv_rank: Width = Field(description="width of the latent from which keys and values are projected")
        query_rank: Width | None = Field(
            None, description="width of the latent of the queries; none: queries are projected directly from the input"
        )
        head_dim: Width = Field(description="width of the unrotated part of a query and key head")
        rotary_head_dim: Width = Field(description="width of the rotated part, whose key is shared by all heads")
        value_head_dim: Width | None = Field(None, description="width of a value head; none: head_dim")
        norm: Norm = part_option("rms_norm", "norm of both latents")
        scaled_ranks: bool = Field(
            False,
            description="scale queries by sqrt(d_model / query_rank), the latent by sqrt(d_model / kv_rank) (LongCat)",
        )
        bias: Bias = Field(True, description="biases: all, none, or a list of projections; key_value_up has none")
        scale: Scale = Field(None, description="factor on the scores; none: 1 / sqrt(head_dim + rotary_head_dim)")
        dropout: Dropout = Field(0.0, description="dropout of the attention weights")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_bias(self.bias, PROJECTIONS)
            for rank in {self.kv_rank, self.query_rank or self.kv_rank}:
                yield from check_norm("norm", self.norm, rank)
            missing = ("query_down", "query_up") if self.query_rank is None else ("query",)
            for name in () if isinstance(self.bias, bool) else self.bias:
                if name in missing:
                    yield Problem(
                        "bias",
                        f"there is no {name} projection {'without' if self.query_rank is None else 'with'} "
                        "query_rank; remove it from the list",
                    )

        def score_width(self, shape: Shape) -> int:
            return self.head_dim + self.rotary_head_dim

        def width(self, shape: Shape) -> int:
            return self.rotary_head_dim

    capabilities = frozenset(OF_LAYERS)
    residual_outputs = ("output",)
    gain_scaled = ("key_value_up", "output")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        heads, self.turned = config.num_heads, config.rotary_head_dim
        self.value_dim = config.value_head_dim or config.head_dim

        def linear(name: str, width: int, out: int) -> nn.Linear:
            return nn.Linear(width, out, bias=has_bias(config.bias, name))

        rank, width = config.query_rank, heads * (config.head_dim + self.turned)
        if rank is None:
            self.query = linear("query", shape.d_model, width)
        else:
            self.query_down = linear("query_down", shape.d_model, rank)
            self.query_norm = config.norm.build(Shape(rank))
            self.query_up = linear("query_up", rank, width)
        self.key_value_down = linear("key_value_down", shape.source_width, config.kv_rank + self.turned)
        self.key_value_norm = config.norm.build(Shape(config.kv_rank))
        self.key_value_up = nn.Linear(config.kv_rank, heads * (config.head_dim + self.value_dim), bias=False)
        self.output = linear("output", heads * self.value_dim, shape.d_model)
        plain = (config.head_dim + self.turned) ** -0.5
        self.scale = plain if config.scale is None else scale_factor(config.scale, shape.d_model)
        scaled = config.scaled_ranks
        self.query_factor = (shape.d_model / rank) ** 0.5 if scaled and rank is not None else 1.0
        self.latent_factor = (shape.source_width / config.kv_rank) ** 0.5 if scaled else 1.0

    def forward(self, x: Tensor, context: Context) -> Tensor:
        query, turned = self._queries(x, context)  # [batch head query dim] and [batch head query rotary]
        rotary_key, latent = self._latent(x, context)  # [batch 1 key rotary] and [batch 1 key rank]
        watched = context.collector.watches("attention")
        narrow = context.state is not None and not watched and self._saves(query.shape[2])
        attend_over = self._narrow if narrow else self._wide
        out = attend_over(query, turned, rotary_key, latent, context)  # [batch head query value_dim]
        merged: Tensor = self.output(rearrange(out, JOIN))  # [batch query d_model]
        return merged

    def _queries(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return the unrotated part [batch head query dim] and rotated part [batch head query rotary] of queries."""
        direct = self.config.query_rank is None
        query = self.query(x) if direct else self.query_up(self.query_norm(self.query_down(x)))
        query = rearrange(query, SPLIT, head=self.config.num_heads) * self.query_factor  # [batch head query dim+rotary]
        temperature = context.position.temperature()
        if temperature is not None:
            query = (query * temperature[:, None, :, None]).to(query.dtype)
        return query[..., : self.config.head_dim], self._turn(query[..., self.config.head_dim :], context)

    def _latent(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return the rotary key [batch 1 key rotary] and the latent [batch 1 key rank] to attend to."""
        state: KeyValueState | None = context.state
        stored = None if state is None or context.source is None else state.stored()
        if stored is not None:
            return stored
        down = self.key_value_down(x if context.source is None else context.source)[:, None]
        # [batch 1 key rank] and [batch 1 key rotary]
        latent, key = down.split((self.config.kv_rank, self.turned), dim=-1)
        latent = self.key_value_norm(latent) * self.latent_factor
        if state is not None and context.position.moves:
            key, latent = state.append(key, latent)  # cached unrotated, as rotations change with the length
            return self._turn(key, context, of_keys=True), latent
        key = self._turn(key, context)
        return (key, latent) if state is None else state.append(key, latent)

    def _wide(self, query: Tensor, turned: Tensor, rotary_key: Tensor, latent: Tensor, context: Context) -> Tensor:
        """Attend after materializing the keys and values of all heads: [batch head query value_dim]."""
        both = rearrange(self.key_value_up(latent[:, 0]), SPLIT, head=self.config.num_heads)
        # [batch head key dim] and [batch head key value_dim]
        key, value = both.split((self.config.head_dim, self.value_dim), dim=-1)
        rotary_key = repeat(rotary_key, "batch 1 time dim -> batch head time dim", head=self.config.num_heads)
        key = torch.cat((key, rotary_key), dim=-1)  # [batch head key dim+rotary]
        bias, scores = context.position.bias(self.config.num_heads), self._scores()
        query = torch.cat((query, turned), dim=-1)  # [batch head query dim+rotary]
        if context.collector.watches("attention"):
            out, weights = reference(query, key, value, context.mask, scores, bias)
            context.collector.observe("attention", weights)
            return out
        return attend(query, key, value, context.mask, scores, bias)

    def _narrow(self, query: Tensor, turned: Tensor, rotary_key: Tensor, latent: Tensor, context: Context) -> Tensor:
        """Attend over the latent: q (W c) = (q W) c, and a weighted sum of W c is W times the weighted sum of c.

        With few queries and many keys, this avoids materializing the keys and values.
        """
        up = rearrange(self.key_value_up.weight, "(head dim) rank -> head dim rank", head=self.config.num_heads)
        # [head dim rank] and [head value_dim rank]
        key_up, value_up = up[:, : self.config.head_dim], up[:, self.config.head_dim :]
        query = einsum(query, key_up, "batch head time dim, head dim rank -> batch head time rank")
        query = torch.cat((query, turned), dim=-1)  # [batch head query rank+rotary]
        key = torch.cat((latent, rotary_key), dim=-1)  # [batch 1 key rank+rotary]
        bias = context.position.bias(self.config.num_heads)
        mixed = attend(query, key, latent, context.mask, self._scores(), bias)  # [batch head query rank]
        out: Tensor = einsum(mixed, value_up, "batch head time rank, head dim rank -> batch head time dim")
        return out

    def _saves(self, queries: int) -> bool:
        """True if attending over the latent is cheaper than materializing keys and values."""
        rank, wide = self.config.kv_rank, self.config.head_dim + self.value_dim
        return queries * (2 * rank - wide) < rank * wide

    def _scores(self) -> Scores:
        return Scores(self.scale, None, self.config.dropout if self.training else 0.0)

    def _turn(self, x: Tensor, context: Context, of_keys: bool = False) -> Tensor:
        """Rotate queries or keys by position; a no-op in cross-attention."""
        rotate = context.position.rotation(self.turned, of_keys) if context.source is None else None
        return x if rotate is None else rotate(x)
