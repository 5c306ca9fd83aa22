"""Initial values.

| type | choose it when |
|---|---|
| xavier | the original and the default: scales each matrix by its size |
| normal | BERT: one standard deviation for all weights |
| scaled_residual | GPT-2: normal, with smaller residual outputs in deeper stacks; use it with pre_norm |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.norm import Norm
from tfkit.components.sublayer import Sublayer
from tfkit.core import component
from tfkit.core.component import Config
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.core.skeleton import draw_for
from tfkit.core.slots import InitFacts


class Init(InitFacts):
    """Initializes the weights of a model in place.

    Norms and bare parameters keep the values set by their parts. Each weight is initialized once; a weight shared by
    head and token table is initialized as an embedding.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        done: set[int] = set()
        modules = dict(_outside_norms(model, ""))
        kinds: tuple[type[nn.Embedding | nn.Linear], ...] = (nn.Embedding, nn.Linear)
        for kind in kinds:
            for name, module in modules.items():
                if isinstance(module, kind) and id(module.weight) not in done:
                    done.add(id(module.weight))
                    draw_for(f"{name}.weight")
                    self._fill(module)
        draw_for("init")
        for module in modules.values():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.finish(model)
        _gain(model)

    def _fill(self, module: nn.Embedding | nn.Linear) -> None:
        """Initialize a weight; experts are stacked along the first axis."""
        weight = module.weight
        fill = self.embedding if isinstance(module, nn.Embedding) else self.linear
        for matrix in weight.unbind() if weight.dim() == 3 else (weight,):
            fill(matrix)

    def embedding(self, weight: Tensor) -> None:
        """Initialize a table [rows width]."""
        raise NotImplementedError(f"{type(self).__name__} does not initialize embeddings")

    def linear(self, weight: Tensor) -> None:
        """Initialize the weight [out in] of a linear layer; its bias is zero."""
        raise NotImplementedError(f"{type(self).__name__} does not initialize linear layers")

    def depth_gain(self, depth: int) -> float:
        """Return the factor for residual outputs in a stack of `depth` layers."""
        return 1.0

    def finish(self, model: nn.Module) -> None:
        """Hook that runs after all weights are initialized."""


def linears(sublayer: Sublayer, names: tuple[str, ...]) -> Iterator[nn.Linear]:
    """Yield a sublayer's linear layers by the names it declares."""
    for name in names:
        module = sublayer.get_submodule(name)
        if isinstance(module, nn.Linear):
            yield module


def _outside_norms(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, Norm):
        yield name, module
        for child, inner in module.named_children():
            yield from _outside_norms(inner, f"{name}.{child}" if name else child)


@runtime_checkable
class GainScaled(Protocol):
    """A layer with a factor on the initial weights that its sublayers declare as `gain_scaled`."""

    init_gain: float


def _gain(model: nn.Module) -> None:
    """Multiply declared weights by the `init_gain` of their layer (DeepNorm), shared weights once."""
    done: set[int] = set()
    for layer in model.modules():
        gain = layer.init_gain if isinstance(layer, GainScaled) else 1.0
        if not isinstance(gain, float) or gain == 1.0:  # in residual layouts, init_gain is a method
            continue
        for sublayer in layer.modules():
            for linear in linears(sublayer, sublayer.gain_scaled) if isinstance(sublayer, Sublayer) else ():
                if id(linear.weight) not in done:
                    done.add(id(linear.weight))
                    linear.weight.mul_(gain)


@register("init", "xavier")
class Xavier(Init):
    """W ~ U(-a, a), a = sqrt(6 / (in + out)); tables ~ N(0, 1/width); biases 0 (Glorot and Bengio 2010)."""

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def linear(self, weight: Tensor) -> None:
        nn.init.xavier_uniform_(weight)

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        return float(shape[1] ** -0.5 if is_table else (2 / (shape[-2] + shape[-1])) ** 0.5)


@register("init", "normal")
class Normal(Init):
    """Weights and tables ~ N(0, std²), biases 0 (Devlin et al. 2018, arXiv 1810.04805)."""

    class Config(component.Config):
        std: PositiveFloat = Field(0.02, description="standard deviation")

    config: Config

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def linear(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        return self.config.std


@register("init", "scaled_residual")
class ScaledResidual(Normal):
    """N(0, std²), with residual outputs divided by sqrt(2 * num_layers) (Radford et al. 2019, GPT-2, 2.3).

    The residual stream is a sum of 2 * num_layers outputs; the division keeps its variance independent of depth.
    """

    def depth_gain(self, depth: int) -> float:
        return float((2 * depth) ** -0.5)

    def finish(self, model: nn.Module) -> None:
        outputs = {
            linear.weight: self.depth_gain(sublayer.shape.depth)
            for sublayer in model.modules()
            if isinstance(sublayer, Sublayer)
            for linear in linears(sublayer, sublayer.residual_outputs)
        }
        for weight, factor in outputs.items():
            weight.mul_(factor)
