"""Models on the meta device, which have parameter names and shapes but use no memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from tfkit.core.blueprint import Blueprint

DRAWS = (
    *(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.bernoulli_),
    *(init.normal_, init.uniform_, init.kaiming_normal_, init.kaiming_uniform_),
)


class NoDraws(TorchFunctionMode):
    """Mode that skips random initialization, which is useless on `meta` and makes torch import its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def skeleton(blueprint: Blueprint) -> nn.Module:
    """Build the model on the meta device."""
    with torch.device("meta"), NoDraws():
        model: nn.Module = blueprint.type.build(blueprint)
    return model
