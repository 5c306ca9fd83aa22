"""Matching of a run's tensors to a model by name and shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfkit.training.weights import Weights, dtype_name


@dataclass(frozen=True)
class Fit:
    """Result of matching a run's tensors to a model.

    `kept` maps names in the model to the run's tensors; `new` maps names without a match to a reason, or "". `unused`
    lists the run's tensors without a match, and `alone` the unused tensors whose name is not in `new` either.
    """

    kept: dict[str, Tensor]
    new: dict[str, str]
    unused: list[str]
    alone: list[str]

    @classmethod
    def of(cls, own: Weights, source: Weights, others: tuple[str, ...]) -> Fit:
        """Match two sets of weights by name and shape. Names with a prefix in `others` never match."""
        found = source.by_name()
        kept: dict[str, Tensor] = {}
        new: dict[str, str] = {}
        used: set[str] = set()
        replaced: set[str] = set()
        for name, tensor in own.tensors.items():
            names = [name, *(alias for alias, owner in own.tied.items() if owner == name)]
            first = next((one for one in names if one in found), None)
            why = "" if first is None else _why_new(first, tensor, found[first], others)
            if first is None or why:
                new[name] = why
                replaced.update(names)
            else:
                kept[name] = found[first]
                same = (one for one in names if one in found and torch.equal(found[one], found[first]))
                used.update(
                    [first, *same]
                )  # `first` is added explicitly, because tensors with NaN are not equal to themselves
        used.update(source.tied[alias] for alias in used & source.tied.keys())
        unused = [name for name in source.tensors if name not in used]
        return cls(kept, new, unused, [name for name in unused if name not in replaced])


def _why_new(name: str, tensor: Tensor, source: Tensor, others: tuple[str, ...]) -> str:
    """Return the reason why a tensor is not copied, or ""."""
    if name.startswith(others):
        return "the run's head has another type"
    if source.shape != tensor.shape:
        return f"shape {list(tensor.shape)} here, {list(source.shape)} in the run"
    if tensor.is_floating_point() and not source.is_floating_point():
        return f"{dtype_name(source)} in the run"
    return ""


def patterns_for(names: Iterable[str], others: Sequence[str]) -> list[str]:
    """Return short patterns that match all of `names` and none of `others`."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        beginnings = (".".join(parts[:length]) + "." for length in range(1, len(parts)))
        free = (beginning for beginning in beginnings if not any(other.startswith(beginning) for other in others))
        beginning = next(free, None)
        found[name if beginning is None else f"{beginning}*"] = None
    return list(found)
