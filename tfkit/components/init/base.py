"""Base class of the initializations, which use what the parts of a model declare, never the names of its weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tfkit.components.norm.base import Norm
from tfkit.components.sublayer import Sublayer
from tfkit.core.component import Config
from tfkit.core.slots import InitFacts


class Init(InitFacts):
    """Gives weights their initial values; called on the model, in place.

    Norms and bare parameters stay as their parts made them. Each weight is visited once: one that a head shares with
    the token table is an embedding.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        done: set[int] = set()
        modules = list(_outside_norms(model))
        kinds: tuple[type[nn.Embedding | nn.Linear], ...] = (nn.Embedding, nn.Linear)
        for kind in kinds:
            for module in modules:
                if isinstance(module, kind) and id(module.weight) not in done:
                    done.add(id(module.weight))
                    self._fill(module)
        for module in modules:
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.finish(model)
        _gain(model)

    def _fill(self, module: nn.Embedding | nn.Linear) -> None:
        """Fill a weight; those of experts lie one after another in one tensor."""
        weight = module.weight
        fill = self.embedding if isinstance(module, nn.Embedding) else self.linear
        for matrix in weight.unbind() if weight.dim() == 3 else (weight,):
            fill(matrix)

    def embedding(self, weight: Tensor) -> None:
        """Fill a table [rows width]."""
        raise NotImplementedError(f"{type(self).__name__} fills no embeddings")

    def linear(self, weight: Tensor) -> None:
        """Fill the weight [out in] of a linear layer; its bias is zero."""
        raise NotImplementedError(f"{type(self).__name__} fills no linear layers")

    def depth_gain(self, depth: int) -> float:
        """The factor on weights whose output enters the residual stream of a stack of that many layers."""
        return 1.0

    def finish(self, model: nn.Module) -> None:
        """Called after all weights are filled."""


def linears(sublayer: Sublayer, names: tuple[str, ...]) -> Iterator[nn.Linear]:
    """The linear layers that a sublayer declares by name."""
    for name in names:
        module = sublayer.get_submodule(name)
        if isinstance(module, nn.Linear):
            yield module


def _outside_norms(module: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(module, Norm):
        yield module
        for child in module.children():
            yield from _outside_norms(child)


def _gain(model: nn.Module) -> None:
    """Scale what sublayers declare by the `init_gain` of the layer around them (DeepNorm), shared weights once."""
    done: set[int] = set()
    for layer in model.modules():
        gain = getattr(layer, "init_gain", 1.0)
        if not isinstance(gain, float) or gain == 1.0:
            continue
        for sublayer in layer.modules():
            for linear in linears(sublayer, sublayer.gain_scaled) if isinstance(sublayer, Sublayer) else ():
                if id(linear.weight) not in done:
                    done.add(id(linear.weight))
                    linear.weight.mul_(gain)
