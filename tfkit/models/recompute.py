"""Activation checkpointing: layers are recomputed in the backward pass (Chen et al. 2016, arXiv 1604.06174)."""

# Axes: batch, time, d_model.

from __future__ import annotations

from dataclasses import replace
from itertools import count

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tfkit.core.context import Context
from tfkit.functional.dropout import drawing, draws_here


def recomputed(layer: nn.Module, x: Tensor, context: Context) -> Tensor:
    """Map [batch time d_model] to the same shape, storing only `x`; the backward pass runs the layer again.

    The second run repeats the dropout draws and starts from the context's caches as they are now, so that it computes
    equal tensors. Its observations and losses are discarded.
    """
    draws, start, runs = draws_here(), context.apart(), count()

    def run(x: Tensor) -> Tensor:
        if next(runs) == 0:
            out: Tensor = layer(x, context)  # [batch time d_model]
            return out
        with drawing(None if draws is None else replace(draws)):
            out = layer(x, start.apart())
            return out

    result: Tensor = checkpoint(run, x, use_reentrant=False)
    return result
