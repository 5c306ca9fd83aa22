"""Tokens that attend to all tokens, and that all tokens attend to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.component import Problem
from tfkit.core.context import Inputs
from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("mask", "global_tokens")
class GlobalTokens(Mask):
    """marked(query) or marked(key) (Beltagy et al. 2020, Longformer, arXiv 2004.05150)."""

    class Config(Mask.Config):
        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.causal:
                yield Problem("", "global_tokens would show the future to a causal layer")

    opens = True
    marks = True
    needs = frozenset({"global_attention_mask"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        if inputs.global_attention_mask is None:
            raise UsageError(
                "the mask 'global_tokens' needs global_attention_mask [batch time], 1 = sees all, seen by all"
            )
        marked = inputs.global_attention_mask.bool()
        row = rearrange(torch.arange(marked.shape[0], device=marked.device), "batch -> batch 1 1")
        return marked[row, query] | marked[row, key]
