"""Parallel scan of a linear recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # steps per chunk; time grows with its logarithm, and memory with its size


def linear_scan(decay: Tensor, given: Tensor, before: Tensor | None = None) -> Tensor:
    """Compute h_t = decay_t h_(t-1) + given_t for [batch time ...], starting from `before` [batch ...] or 0."""
    steps = []
    for one, more in zip(torch.split(decay, CHUNK, dim=1), torch.split(given, CHUNK, dim=1), strict=True):
        found = _doubled(one, more, before)
        before = found[:, -1]
        steps.append(found)
    return steps[0] if len(steps) == 1 else torch.cat(steps, dim=1)


def _doubled(decay: Tensor, given: Tensor, before: Tensor | None) -> Tensor:
    """Scan a chunk by combining each step with the steps 1, 2, 4, ... before it (Hillis and Steele 1986)."""
    if before is not None:
        first = given[:, :1] + decay[:, :1] * before[:, None]
        given = torch.cat((first, given[:, 1:]), dim=1)
    distance = 1
    while distance < given.shape[1]:
        given = given + decay * _later(given, distance)
        decay = decay * _later(decay, distance)
        distance *= 2
    return given


def _later(x: Tensor, by: int) -> Tensor:
    """Shift [batch time ...] towards later positions, filling with zeros."""
    return F.pad(x[:, :-by], (0, 0) * (x.dim() - 2) + (by, 0))
