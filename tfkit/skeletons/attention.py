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
    """softmax(sharpness_h * cos(q_h, k_h)) v_h: scores depend only on the directions of queries and keys."""

    # Options of the part, as written in a recipe: {type: my_part, num_heads: 8}. Add your own here.
    class Config(Attention.Config):
        num_heads: int = Field(ge=1, description="number of heads, each of width d_model / num_heads")
        sharpness: float = Field(10.0, gt=0, description="initial factor on the cosines")

        def check(self, shape: tfkit.Shape) -> Iterator[Problem]:
            # Problems are reported when the recipe is validated, before any tensor exists.
            if shape.d_model % self.num_heads:
                yield Problem(
                    "num_heads", f"{self.num_heads} heads do not divide d_model {shape.d_model}; use a divisor"
                )

    # The capabilities of the part: tfkit refuses recipes that need others, and `tfkit parts --verify` tests each one.
    # Add "cross_attention" once keys and values can be computed from `context.source`.
    capabilities = frozenset({"causal", "bidirectional", "cache", "padding", "packing", "masks", "compile", "export"})
    residual_outputs = ("output",)  # layers that write to the residual stream; some inits scale them with the depth
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
        # Change this: the similarity of queries and keys.
        query, key = self.sharpness * F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        if context.state is not None:  # decoding: prepend the keys and values of all earlier tokens
            key, value = context.state.append(key, value)  # [batch head key dim] each
        # `attend` computes softmax(query keyᵀ) value with the fastest kernel. To compute weights yourself, use
        # visible = context.mask.dense()  # [batch query key], True = visible, or None if everything is visible
        out = attend(query, key, value, context.mask, Scores(1.0))  # [batch head query dim]
        out = rearrange(out, "batch head time dim -> batch time (head dim)")  # [batch query d_model]
        merged: Tensor = self.output(out)
        return merged
