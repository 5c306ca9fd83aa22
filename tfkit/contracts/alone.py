"""A single sublayer, called with the context that a stack would pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.contracts.calls import randomise
from tfkit.contracts.cases import Case
from tfkit.contracts.options import D_MODEL, MAX_LENGTH, VOCABULARY
from tfkit.core.context import Collector, Context, Placement, Span, Visibility
from tfkit.core.options import Slot
from tfkit.core.shape import Shape
from tfkit.core.slots import AttentionFacts

TIME = 6


def states(rows: int, time: int, width: int = D_MODEL, seed: int = 1) -> Tensor:
    """Return random hidden states [rows time width] in float64."""
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Alone:
    """The part of a case with randomized weights, built as causal if it supports that."""

    def __init__(
        self,
        case: Case,
        memory_width: int | None = None,
        both_ways: bool = False,
        dtype: torch.dtype = torch.float64,
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
        self.rules = [built("mask", "causal", self.shape)] if causal else []

    def __call__(
        self,
        x: Tensor,
        position: Sequence[Any] = (),
        places: Tensor | None = None,
        source: Tensor | None = None,
        real: Tensor | None = None,
        collector: Collector | None = None,
    ) -> Tensor:
        """Map [rows time d_model] to the same shape; `places` [1 time] are positions, `real` [rows key] is a mask."""
        time = x.shape[1]
        keys = time if source is None else source.shape[1]
        query = torch.arange(time)[None] if places is None else places  # [1 query]
        key = query if source is None else torch.arange(keys)[None]  # [1 key]
        mask = Visibility(self.rules, Span(time, keys, 0, x.device), real=real)
        context = Context(mask, Placement(position, query, key), source=source, collector=collector or Collector())
        with torch.no_grad():
            out: Tensor = self.part(x, context)
        return out


def built(slot: str, name: str, shape: Shape) -> Any:
    """Build a shipped part with default options."""
    return Slot(slot).validate(name).build(shape)
