"""Longformer attention: marked tokens attend to all others through separate projections."""

# Axes: batch, time, head, query (tokens), n (marked tokens), dim (channels of a head), d_model.

from __future__ import annotations

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.attention.base import Attention, PlainHeadsConfig
from tfkit.core.component import Shape
from tfkit.core.context import Context
from tfkit.core.options import Dropout, has_bias
from tfkit.core.registry import register
from tfkit.functional.attend import Scores, attend, attend_rows, reference
from tfkit.functional.band import places_of, rows_at, with_rows

PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global", "output")
SPLIT = "batch time (head dim) -> batch head time dim"


@register("attention", "longformer")
class LongformerAttention(Attention):
    """Multi-head attention with separate projections for marked tokens (Beltagy et al. 2020, arXiv 2004.05150).

    `global_attention_mask` in the call marks them. Visibility is defined by mask rules: `window` together with
    `global_tokens` implements the paper's pattern at linear cost. Unmarked tokens attend to all visible tokens with the
    ordinary projections, in one softmax.
    """

    class Config(PlainHeadsConfig):
        dropout: Dropout = Field(0.0, description="dropout of the attention weights")

        projections = PROJECTIONS

    capabilities = frozenset({"bidirectional", "padding", "packing", "masks", "weights", "compile", "export"})
    needs = frozenset({"global_attention_mask"})
    inert = frozenset({"key.bias", "key_global.bias"})  # adds a constant to every score of a row
    residual_outputs = ("output",)
    gain_scaled = ("value", "value_global", "output")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        width = config.num_heads * config.width(shape)
        for name in PROJECTIONS[:-1]:
            self.add_module(name, nn.Linear(shape.d_model, width, bias=has_bias(config.bias, name)))
        self.output = nn.Linear(width, shape.d_model, bias=has_bias(config.bias, "output"))
        self.scale = config.width(shape) ** -0.5

    def forward(self, x: Tensor, context: Context) -> Tensor:
        marked = context.inputs.global_attention_mask  # required by models; optional in standalone parts
        marked = x.new_zeros(x.shape[:2]) if marked is None else marked
        scores = Scores(self.scale, dropout=self.config.dropout if self.training else 0.0)
        if context.collector.watches("attention"):
            out = self._observed(x, marked.bool(), context, scores)  # [batch head query dim]
        elif torch.compiler.is_compiling():  # the number of marked tokens is unknown while tracing
            own, other = (attend(*self._split(x, suffix), context.mask, scores) for suffix in ("", "_global"))
            out = torch.where(marked.bool()[:, None, :, None], other, own)  # [batch head query dim]
        else:
            out = self._few(x, marked.bool(), context, scores)  # [batch head query dim]
        out = rearrange(out, "batch head time dim -> batch time (head dim)")  # [batch query head*dim]
        merged: Tensor = self.output(out)  # [batch query d_model]
        return merged

    def _few(self, x: Tensor, marked: Tensor, context: Context, scores: Scores) -> Tensor:
        """Attend with the ordinary projections for all tokens, then with the global ones for the few marked tokens."""
        out = attend(*self._split(x), context.mask, scores)  # [batch head query dim]
        places, meant = places_of(marked)
        query, key, value = self._split(x, "_global")
        rows = attend_rows(rows_at(query, places), places, key, value, context.mask, scores)  # [batch head n dim]
        rows = torch.where(meant[:, None, :, None], rows, rows_at(out, places))
        return with_rows(out, places, rows)

    def _observed(self, x: Tensor, marked: Tensor, context: Context, scores: Scores) -> Tensor:
        """Attend with the reference implementation, which also returns the weights."""
        own = reference(*self._split(x), context.mask, scores)
        other = reference(*self._split(x, "_global"), context.mask, scores)
        out, weights = (
            torch.where(marked[:, None, :, None], marked_one, plain)
            for plain, marked_one in zip(own, other, strict=True)
        )
        context.collector.observe("attention", weights)
        return out

    def _split(self, x: Tensor, suffix: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values [batch head time dim]."""
        query, key, value = (
            rearrange(getattr(self, f"{name}{suffix}")(x), SPLIT, head=self.config.num_heads)
            for name in ("query", "key", "value")
        )
        return query, key, value
