"""Token embeddings of ESM."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange, reduce
from pydantic import Field
from torch import Tensor

from tfkit.components.embedding.tokens import Tokens
from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.inputs import Inputs
from tfkit.core.options import Dropout, NonNegativeInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.precision import wide_dtype


@register("embedding", "token_dropout")
class TokenDropout(Tokens):
    """`tokens` with masked tokens zeroed and all others scaled up to compensate (Rives et al. 2021, ESM, PNAS 118).

    Vectors are multiplied by (1 - mask_rate) / (1 - share of masked tokens in the text), so that their sum has the same
    scale as in training. Vectors passed instead of ids are unchanged.
    """

    class Config(Tokens.Config):
        mask_id: NonNegativeInt = Field(description="id of the mask token")
        mask_rate: Dropout = Field(0.12, description="share of tokens masked in training")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from super().check(shape)
            if shape.causal:
                yield Problem(
                    "",
                    "needs a bidirectional stack, since its scale reveals how many tokens of the whole text are masked",
                )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            known = facts.token_id("mask")
            if known is not None and known != self.mask_id and facts.objective is not None:
                yield Problem("mask_id", f"is {self.mask_id}, but the tokenizer's mask token has id {known}")

    # the share of masked tokens is defined for whole texts, one per row
    capabilities = TOKENWISE - {"causal", "cache", "packing"}
    config: Config

    def _look_up(self, inputs: Inputs, vectors: Tensor | None) -> Tensor:
        rows = super()._look_up(inputs, vectors)
        if inputs.input_ids is None:
            return rows
        masked = inputs.input_ids.eq(self.config.mask_id)
        real = torch.ones_like(masked) if inputs.real is None else inputs.real
        count, left = (reduce(tokens, "batch time -> batch 1 1", "sum") for tokens in (real, real & ~masked))
        factor = (1 - self.config.mask_rate) * count.to(wide_dtype(rows.dtype)) / left.clamp(min=1)
        return rows.masked_fill(rearrange(masked, "batch time -> batch time 1"), 0) * factor.to(rows.dtype)
