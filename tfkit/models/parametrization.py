"""muP: what a model's weights become as it grows from its base size: initial scale, learning rate, decay and eps.

Yang et al. 2022, arXiv 2203.03466, in the form of its table 8, in which logits have a factor, so that tied tables fit;
with depth, Dey et al. 2025 (CompleteP), arXiv 2505.01618, table 1. The factors on scores, logits and branches are
options of the parts; the recipe spells them out (tfkit/recipe/architecture/parametrize.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from tfkit.components.init import Init, linears
from tfkit.components.sublayer import Sublayer
from tfkit.core.blueprint import Blueprint, Parametrization, mismatch
from tfkit.core.errors import UsageError
from tfkit.core.skeleton import skeleton

LAYER = re.compile(r"(encoder|decoder)\.layers\.")
HEAD = re.compile(r"head\.|heads\.(\w+)\.")


@dataclass(frozen=True)
class Growth:
    """A weight, and how it has grown: `inputs` is its fan-in over that at the base size, `depth` layers over layers.

    `is_head`: it is the last weight before outputs; `scaled`: a factor on the logits stands for its smaller scale.
    """

    weight: nn.Parameter
    base: torch.Size
    is_table: bool
    inputs: float
    width: float
    depth: float = 1.0
    in_layer: bool = False
    is_head: bool = False
    scaled: bool = False
    layers: tuple[int, int] = (1, 1)  # of an output to the residual stream: those of its stack, here and in the base

    @property
    def init(self) -> float:
        """Factor on the standard deviation that a weight of the base size has."""
        if self.scaled:
            return 1.0
        return 1 / self.inputs if self.is_head else self.inputs**-0.5

    def rate(self, exponent: float) -> float:
        """Factor on the learning rate of Adam."""
        depth = self.depth ** (exponent - 1) if self.in_layer else 1.0
        return depth if self.scaled else depth / self.inputs

    @property
    def decay(self) -> float:
        """Factor on the weight decay, so that learning rate times decay stays."""
        return 1.0 if self.scaled else self.inputs

    def eps(self, exponent: float) -> float:
        """Factor on the eps of Adam: gradients shrink by as much."""
        if self.is_head:
            return 1.0
        return self.depth**-exponent / self.width if self.in_layer else 1 / self.width


@torch.no_grad()
def rescale(model: nn.Module, init: Init, blueprint: Blueprint) -> None:
    """Give weights that `init` has filled the standard deviation that muP asks for; raises UsageError."""
    filled = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.Linear)}
    for growth in growths(model, blueprint):
        if id(growth.weight) in filled:
            wanted = init.std(growth.base, growth.is_table) * init.depth_gain(growth.layers[1]) * growth.init
            there = init.std(growth.weight.shape, growth.is_table) * init.depth_gain(growth.layers[0])
            if wanted != there:
                growth.weight.mul_(wanted / there)


def growths(model: nn.Module, blueprint: Blueprint) -> Iterator[Growth]:
    """How each weight of a model has grown, a tied one once, as the embedding that it is.

    Raises UsageError for a base whose weights are not those of the model, in other sizes.
    """
    chosen = blueprint.parametrization
    if chosen is None:
        return
    base = dict(skeleton(chosen.base).named_parameters())
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    outputs = {id(linear.weight) for linear in residual_linears(model)}
    named = dict(model.named_parameters())
    shapes = ({name: weight.shape for name, weight in one.items()} for one in (named, base))
    if (fault := mismatch(*shapes)) is not None:
        raise UsageError(f"model.parametrization.base: {fault}")
    for name, weight in named.items():
        growth = _growth(name, weight, base[name].shape, id(weight) in tables, blueprint, chosen)
        yield replace(growth, layers=_layers(name, chosen)) if id(weight) in outputs else growth


def residual_linears(model: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers whose outputs enter the residual stream, as their sublayers declare."""
    for module in model.modules():
        if isinstance(module, Sublayer):
            yield from linears(module, module.residual_outputs)


def _layers(name: str, chosen: Parametrization) -> tuple[int, int]:
    """The layers of the stack that a weight is in, and those that its base has."""
    found = LAYER.match(name)
    side = "" if found is None else found[1]
    here = next((plan.num_layers for plan in chosen.base.stacks() if plan.side == side), 1)
    return here, dict(chosen.depths).get(side, here)


def _side(name: str, blueprint: Blueprint) -> str:
    """The stack that a weight is in; the last one for what is in none."""
    sides = [plan.side for plan in blueprint.stacks()]
    return next((side for side in sides if name.startswith(f"{side}.")), sides[-1])


def _growth(
    name: str, weight: nn.Parameter, base: torch.Size, is_table: bool, blueprint: Blueprint, chosen: Parametrization
) -> Growth:
    inputs = 1.0 if is_table or weight.dim() < 2 else weight.shape[-1] / base[-1]
    layer, head = LAYER.match(name), HEAD.match(name)
    config = dict(blueprint.heads).get(head[1] or "", blueprint.head) if head else None
    side = _side(name, blueprint) if config is None else blueprint.read_by(config).side
    is_last = config is not None and name.rpartition(".")[0].endswith("output")
    return Growth(
        weight,
        base,
        is_table,
        inputs,
        chosen.width_ratio(blueprint, side),
        chosen.depth_ratio(blueprint, side),
        layer is not None,
        is_last,
        is_last and config is not None and "scale" in type(config).model_fields,
    )
