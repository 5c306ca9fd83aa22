"""Differential attention: the difference between the attention maps of two heads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.attention.multi_head import MultiHead
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.options import Dropout, PositiveFloat
from tfkit.core.registry import register
from tfkit.functional.dropout import dropout as drop
from tfkit.functional.view import wide

VECTORS = ("query_1", "key_1", "query_2", "key_2")  # parameters of lambda


@register("attention", "differential")
class Differential(MultiHead):
    """Heads in pairs: (softmax(q1 k1ᵀ) - lambda softmax(q2 k2ᵀ)) [v1 v2], then a norm (Ye et al. 2024, 2410.05258).

    lambda = exp(query_1 · key_1) - exp(query_2 · key_2) + start, with start = 0.8 - 0.6 exp(-0.3 layer). Head h of the
    first half is paired with head h of the second; a pair's output, 2 value_dim wide, is multiplied by 1 - start.
    """

    class Config(MultiHead.Config):
        lambda_std: PositiveFloat = Field(0.1, description="initial standard deviation of the vectors of lambda")
        dropout: Dropout = Field(0.0, description="dropout of the output of each pair, after its norm")
        eps: PositiveFloat = Field(1e-5, description="added to the mean square in the norm of a pair's output")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from super().check(shape)
            if self.num_heads % 2:
                yield Problem(
                    "num_heads", f"heads are subtracted in pairs, but {self.num_heads} is odd; use an even number"
                )
            elif self.num_kv_heads is not None and self.num_kv_heads % 2:
                yield Problem(
                    "num_kv_heads", f"heads are subtracted in pairs, but {self.num_kv_heads} is odd; use an even number"
                )

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight_dropout = 0.0  # the output of each pair is dropped instead
        self.start = 0.8 - 0.6 * math.exp(-0.3 * shape.layer)
        for name in VECTORS:
            self.register_parameter(name, nn.Parameter(torch.randn(self.head_dim) * config.lambda_std))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        pairs = rearrange(value, "batch (half head) time dim -> batch head time (half dim)", half=2)
        both = repeat(pairs, "batch head time dim -> batch (half head) time dim", half=2)
        first, second = super().attend(query, key, both, context).chunk(2, dim=1)  # [batch pair query dim]
        out = first - self._lambda().to(first.dtype) * second
        out = (F.rms_norm(wide(out), out.shape[-1:], eps=self.config.eps) * (1 - self.start)).to(value.dtype)
        joined: Tensor = rearrange(out, "batch head time (half dim) -> batch (head half) time dim", half=2)
        return drop(joined, self.config.dropout if self.training else 0.0)

    def _lambda(self) -> Tensor:
        query_1, key_1, query_2, key_2 = (wide(getattr(self, name)) for name in VECTORS)
        found: Tensor = (query_1 * key_1).sum().exp() - (query_2 * key_2).sum().exp() + self.start
        return found
