"""my_part: a custom attention."""

# Axes: batch, time, head, query and key (tokens), dim (channels of a head), d_model.

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.attention.base import Attention
from tfkit.core.component import Problem
from tfkit.functional.attend import Scores, attend


@tfkit.register("attention", "my_part")
class MyPart(Attention):
    """softmax(sharpness_h * cos(q_h, k_h)) v_h: only the direction of queries and keys counts."""

    # The options of the part, as a recipe writes them: {type: my_part, num_heads: 8}. Add yours here.
    class Config(Attention.Config):
        num_heads: int = Field(ge=1, description="number of heads, each of width d_model / num_heads")
        sharpness: float = Field(10.0, gt=0, description="initial factor on the cosines")

        def check(self, shape: tfkit.Shape) -> Iterator[Problem]:
            # What cannot fit is reported while the recipe is read, before a tensor exists.
            if shape.d_model % self.num_heads:
                yield Problem(
                    "num_heads", f"{self.num_heads} heads do not divide d_model {shape.d_model}; use a divisor"
                )

    # What the part promises; tfkit refuses recipes that need more, and `tfkit parts --verify` tries each promise.
    # Add "cross_attention" once keys and values can come from `context.source`.
    capabilities = frozenset({"causal", "bidirectional", "cache", "padding", "packing", "masks", "compile", "export"})
    residual_outputs = ("output",)  # what enters the residual stream; some inits scale it by the depth
    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.projection = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.output = nn.Linear(shape.d_model, shape.d_model)
        self.sharpness = nn.Parameter(torch.full((config.num_heads, 1, 1), config.sharpness))

    def forward(self, x: Tensor, context: tfkit.Context) -> Tensor:
        split = "batch time (three head dim) -> three batch head time dim"
        query, key, value = rearrange(self.projection(x), split, three=3, head=self.config.num_heads)
        # [batch head time dim] each
        # Change this: how alike a query and a key are.
        query, key = self.sharpness * F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        if context.state is not None:  # decoding: the keys and values of all earlier tokens come before these
            key, value = context.state.append(key, value)  # [batch head key dim] each
        # `attend` is softmax(query keyᵀ) value by the fastest kernel. For weights of your own ask for the mask:
        # visible = context.mask.dense()  # [batch query key], True = may look, or None: everything is visible
        out = attend(query, key, value, context.mask, Scores(1.0))  # [batch head query dim]
        out = rearrange(out, "batch head time dim -> batch time (head dim)")  # [batch query d_model]
        merged: Tensor = self.output(out)
        return merged
