"""Checkpoint averaging: the mean is often better than any single checkpoint (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tfkit.training.weights import Weights


def mean(files: Iterable[Path]) -> Weights:
    """Average floating-point weights in float64. Take other tensors from the last file."""
    total: dict[str, Tensor] = {}
    last: Weights | None = None
    count = 0
    for file in files:
        last, count = Weights.read(file), count + 1
        for name, tensor in last.tensors.items():
            if tensor.is_floating_point():
                total[name] = tensor.double() if count == 1 else total[name] + tensor.double()
    if last is None:
        raise ValueError("at least one weights file is required")
    averaged = {name: (tensor / count).to(last.tensors[name].dtype) for name, tensor in total.items()}
    return replace(last, tensors=last.tensors | averaged)
