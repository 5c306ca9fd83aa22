"""Diverse beam search: groups of beams that avoid each other's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field, model_validator
from torch import Tensor

from tfkit.core.options import NonNegativeFloat, TextCount
from tfkit.core.registry import register
from tfkit.generation.strategy.beams import BeamSearch, Group


@register("strategy", "diverse_beam")
class DiverseBeam(BeamSearch):
    """log p - diversity * [groups before that chose the token in this step] (Vijayakumar et al. 2016, 1610.02424).

    Each group is a beam search of num_beams / groups beams, the first a plain one. What was taken off stays off a
    beam's score, as in the authors' code, and is no part of a text's log-probability.
    """

    class Config(BeamSearch.Config):
        """Options of diverse_beam."""

        groups: TextCount = Field(2, description="groups of beams, of equal size; num_beams: each beam by itself")
        diversity: NonNegativeFloat = Field(
            0.5, description="taken off for each beam of the groups before that chose the token (the paper: 0.2 to 0.8)"
        )

        @model_validator(mode="after")
        def _equal(self) -> DiverseBeam.Config:
            if self.num_beams % self.groups:
                raise ValueError(f"num_beams: {self.num_beams} beams make no {self.groups} groups of equal size")
            return self

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.groups = config.groups

    def totals(self, groups: Sequence[Group], scores: Tensor) -> Tensor:
        chosen = torch.zeros(len(groups), scores.shape[2], dtype=scores.dtype)
        for index, group in enumerate(groups):
            for token in (token for other in group.before if other.steps > group.steps for token in other.last_tokens):
                chosen[index, token] += 1
        return super().totals(groups, scores) - self.config.diversity * chosen.to(scores.device)[:, None]
