"""muP: scaling of initial weights, learning rates, weight decay and eps with a model's growth from its base size.

Width follows table 8 of Yang et al. 2022 (arXiv 2203.03466), with a factor on the logits so that tables can be tied;
depth follows table 1 of Dey et al. 2025 (CompleteP, arXiv 2505.01618). The factors of scores, logits and branches are
options of the parts, which tfkit/recipe/architecture/parametrize.py sets.
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
    """The growth of a weight from the base model: ratios of its fan-in (`inputs`), of the width and of the depth.

    `is_head` is true for the last weight of a head, and `scaled` if the head scales its logits instead of this weight.
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
    layers: tuple[int, int] = (1, 1)  # layers of the stack in model and base, if the output enters the residual stream

    @property
    def init(self) -> float:
        """Factor on the initial standard deviation of the base model."""
        if self.scaled:
            return 1.0
        return 1 / self.inputs if self.is_head else self.inputs**-0.5

    def rate(self, exponent: float) -> float:
        """Return the factor on Adam's learning rate."""
        depth = self.depth ** (exponent - 1) if self.in_layer else 1.0
        return depth if self.scaled else depth / self.inputs

    @property
    def decay(self) -> float:
        """Factor on the weight decay that keeps the product of learning rate and decay constant."""
        return 1.0 if self.scaled else self.inputs

    def eps(self, exponent: float) -> float:
        """Return the factor on Adam's eps, which scales with the gradients."""
        if self.is_head:
            return 1.0
        return self.depth**-exponent / self.width if self.in_layer else 1 / self.width


@torch.no_grad()
def rescale(model: nn.Module, init: Init, blueprint: Blueprint) -> None:
    """Rescale initialized weights to muP's standard deviation. Raise UsageError if `init` does not define one."""
    filled = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.Linear)}
    for growth in growths(model, blueprint):
        if id(growth.weight) in filled:
            target = init.std(growth.base, growth.is_table) * init.depth_gain(growth.layers[1]) * growth.init
            current = init.std(growth.weight.shape, growth.is_table) * init.depth_gain(growth.layers[0])
            if target != current:
                growth.weight.mul_(target / current)


def growths(model: nn.Module, blueprint: Blueprint) -> Iterator[Growth]:
    """Yield the growth of each weight. A weight tied to an embedding counts as an embedding.

    Raise UsageError if the base model has different weights.
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
    """Yield the linear layers whose outputs enter the residual stream, as the sublayers declare."""
    for module in model.modules():
        if isinstance(module, Sublayer):
            yield from linears(module, module.residual_outputs)


def _layers(name: str, chosen: Parametrization) -> tuple[int, int]:
    """Return the number of layers in the stack of a weight, in the model and in the base model."""
    match = LAYER.match(name)
    side = "" if match is None else match[1]
    base_layers = next((plan.num_layers for plan in chosen.base.stacks() if plan.side == side), 1)
    return base_layers, dict(chosen.depths).get(side, base_layers)


def _side(name: str, blueprint: Blueprint) -> str:
    """Return the stack that contains a weight, or the last stack if no stack contains it."""
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
