"""Multi-head attention, with any number of key and value heads."""

from __future__ import annotations

from collections.abc import Iterator

from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.attention.base import Attention, KeyValueState
from tfkit.core.component import Problem
from tfkit.core.context import Context
from tfkit.core.options import (
    Bias,
    Dropout,
    Norm,
    PositiveFloat,
    PositiveInt,
    Scale,
    Width,
    check_bias,
    has_bias,
    scale_factor,
)
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.attend import Scores, attend, reference

PROJECTIONS = ("query", "key", "value", "output")
SPLIT = "batch time (head dim) -> batch head time dim"


@register("attention", "multi_head")
class MultiHead(Attention):
    """Multi-head attention: concat(softmax(q_h k_hᵀ scale) v_h) W_output (Vaswani et al. 2017, arXiv 1706.03762).

    Fewer key-value heads than heads give grouped-query (Ainslie et al. 2023, arXiv 2305.13245), one gives multi-query
    attention (Shazeer 2019, arXiv 1911.02150).
    """

    class Config(Attention.Config):
        num_heads: PositiveInt = Field(description="heads of the queries; 1 is single-head attention")
        num_kv_heads: PositiveInt | None = Field(
            None, description="heads of keys and values; none: as many as num_heads"
        )
        head_dim: Width | None = Field(None, description="width of a query and key head; none: d_model / num_heads")
        value_dim: Width | None = Field(None, description="width of a value head; none: head_dim")
        bias: Bias = Field(True, description="biases: all, none, or those of the projections named")
        scale: Scale = Field(None, description="factor on the scores; none: 1 / sqrt(head_dim)")
        softcap: PositiveFloat | None = Field(None, description="c in c * tanh(scores / c); none: no cap")
        qk_norm: Norm | None = Field(None, description="norm of each query and key head, before any rotation")
        dropout: Dropout = Field(0.0, description="dropout of the attention weights")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.head_dim is None and shape.d_model % self.num_heads:
                yield Problem(
                    "num_heads",
                    f"{self.num_heads} heads do not divide d_model {shape.d_model}; choose a divisor, or give head_dim",
                )
            if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
                yield Problem(
                    "num_kv_heads", f"{self.num_kv_heads} key-value heads do not divide {self.num_heads} heads"
                )
            for option, message in check_bias(self.bias, PROJECTIONS):
                yield Problem(option, message)

        def width(self, shape: Shape) -> int:
            """Width of one query and key head."""
            return self.head_dim or shape.d_model // self.num_heads

    capabilities = frozenset(
        {"causal", "bidirectional", "cross_attention", "cache", "padding", "packing", "weights", "compile", "export"}
    )
    inert = frozenset({"key.bias"})  # the same number on every score of a row leaves softmax as it was
    residual_outputs = ("output",)
    gained = ("value", "output")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        self.head_dim = config.width(shape)
        value_dim = config.value_dim or self.head_dim

        def linear(name: str, width: int, out: int) -> nn.Linear:
            return nn.Linear(width, out, bias=has_bias(config.bias, name))

        self.query = linear("query", shape.d_model, heads * self.head_dim)
        self.key = linear("key", shape.source_width, kv_heads * self.head_dim)
        self.value = linear("value", shape.source_width, kv_heads * value_dim)
        self.output = linear("output", heads * value_dim, shape.d_model)
        self.heads, self.kv_heads = heads, kv_heads
        scale = self.head_dim**-0.5 if config.scale is None else scale_factor(config.scale, shape.d_model)
        self.scores = Scores(scale, config.softcap)
        if config.qk_norm:
            head_shape = Shape(self.head_dim)
            self.query_norm, self.key_norm = config.qk_norm.build(head_shape), config.qk_norm.build(head_shape)
        else:
            self.query_norm, self.key_norm = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rotate = context.position.rotation(self.head_dim)
        query = self.query_norm(rearrange(self.query(x), SPLIT, head=self.heads))
        query = query if rotate is None else rotate(query)
        temperature = context.position.temperature()
        if temperature is not None:
            query = query * temperature[:, None, :, None]
        key, value = self._keys_values(x, context)
        bias = context.position.bias(self.heads)
        scores = Scores(self.scores.scale, self.scores.softcap, self.config.dropout if self.training else 0.0)
        if context.collector.watches("attention"):
            out, weights = reference(query, key, value, context.mask, scores, bias)
            context.collector.observe("attention", weights)
        else:
            out = attend(query, key, value, context.mask, scores, bias)
        merged: Tensor = self.output(rearrange(out, "batch head time dim -> batch time (head dim)"))
        return merged

    def _keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Keys and values of all that this call may attend to: the memory's once, or the past's and the new ones."""
        state: KeyValueState | None = context.state
        if context.source is None:
            new = self._project(x, context)
            return new if state is None else state.append(*new)
        stored = None if state is None else state.stored()
        if stored is not None:
            return stored
        new = self._project(context.source, context)
        return new if state is None else state.append(*new)

    def _project(self, source: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        key = self.key_norm(rearrange(self.key(source), SPLIT, head=self.kv_heads))
        value = rearrange(self.value(source), SPLIT, head=self.kv_heads)
        rotate = None if context.source is not None else context.position.rotation(self.head_dim)
        if rotate is not None:
            key = rotate(key)
        return key, value
