"""Beam search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.functional.largest import topk
from tfkit.generation.strategy.beams import BeamSearch, Group


@register("strategy", "beam")
class Beam(BeamSearch):
    """The num_beams most likely beginnings, again and again; score = log p(text) / tokens ** length_penalty.

    Lowerre 1976; with a length penalty Wu et al. 2016 (arXiv 1609.08144), which is that of Hugging Face here. The
    tokens are those written, an end token among them. `sampled` draws continuations, each by its beam's and its own
    probability and none twice, by the largest log p + Gumbel noise (Kool et al. 2019, arXiv 1903.06059).
    """

    class Config(BeamSearch.Config):
        """Options of beam."""

        sampled: bool = Field(False, description="draw the continuations of the beams in the place of the best ones")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.draws = config.sampled

    def best(self, groups: Sequence[Group], totals: Tensor, count: int) -> Tensor:
        if not self.config.sampled:
            return super().best(groups, totals, count)
        noise = torch.stack([gumbel(totals.shape[1], group.generator, totals.dtype) for group in groups])
        drawn = topk(totals + noise.to(totals.device), count)[1]
        order = totals.gather(1, drawn).argsort(dim=1, descending=True)
        return drawn.gather(1, order)


def gumbel(count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Gumbel noise, [count]: the largest of log p + noise is drawn from p."""
    return -torch.empty(count, dtype=dtype).exponential_(generator=generator).clamp(min=1e-30).log()
