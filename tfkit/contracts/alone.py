"""A single sublayer, called with the context that a stack would pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tfkit.contracts.calls import randomise
from tfkit.contracts.cases import Case
from tfkit.contracts.options import D_MODEL, MAX_LENGTH, VOCABULARY
from tfkit.core.context import Context
from tfkit.core.options import Slot
from tfkit.core.shape import Shape
from tfkit.core.slots import AttentionFacts
from tfkit.models.alone import context

TIME = 6


def states(rows: int, time: int, width: int = D_MODEL, seed: int = 1) -> Tensor:
    """Return random hidden states [rows time width] in float64."""
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Alone:
    """The part of a case with randomized weights, built as causal if it supports that."""

    def __init__(
        self, case: Case, memory_width: int | None = None, both_ways: bool = False, dtype: torch.dtype = torch.float64
    ) -> None:
        config = case.config
        heads = config.heads() if isinstance(config, AttentionFacts.Config) else None
        causal = case.declares("causal") and memory_width is None and not both_ways
        self.shape = Shape(D_MODEL, VOCABULARY, MAX_LENGTH, causal=causal, memory_width=memory_width, num_heads=heads)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            part: nn.Module = config.build(self.shape)
        randomise(part)
        self.part = part.to(dtype).eval()

    def __call__(self, x: Tensor, **how: Any) -> Tensor:
        """Map [rows time d_model] to the same shape; `how` are keywords of `tfkit.models.alone.context`."""
        with torch.no_grad():
            out: Tensor = self.part(x, self.context(x, **how))
        return out

    def context(self, x: Tensor, **how: Any) -> Context:
        """Return the context of a call."""
        return context(x, causal=self.shape.causal, **how)


def built(slot: str, name: str, shape: Shape) -> Any:
    """Build a shipped part with default options."""
    return Slot(slot).validate(name).build(shape)
