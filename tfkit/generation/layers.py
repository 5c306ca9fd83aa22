"""Linear layers for decoding, which may compute with faster copies of their weights, fused by input."""

# Axes: width (input channels), out (output channels of a layer). Each forward maps [... width] to [... out].

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tfkit.functional.linear import product
from tfkit.functional.ways import Product, Way

Choose = Callable[[Sequence[nn.Linear], int], Way | None]  # layers, rows -> the fastest way; None: the layers' own
Make = Callable[[Sequence[nn.Linear], Way], Product | None]


class ByRows(dict[int, Product | None]):
    """Cache: number of rows -> packed weight, or None for the plain weight."""

    def __init__(self, find: Callable[[int], Product | None]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, rows: int) -> Product | None:
        self[rows] = product = self.find(rows)
        return product


class Layers:
    """Linear layers with a common input, computed in the fastest way for the number of rows.

    `make` prepares a way on first use, or returns None to use the plain weights.
    """

    def __init__(self, linears: Sequence[nn.Linear], choose: Choose, make: Make) -> None:
        self.linears = linears
        self.choose = choose
        self.make = make
        self.weights = [(linear._parameters, linear.weight) for linear in linears]
        self.sizes = [linear.weight.shape[0] for linear in linears]
        self.width = linears[0].weight.shape[1]
        self.copies: dict[Way, Product | None] = {}
        self.products = ByRows(self._product)

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute [... width] -> [... out] for each layer."""
        own = self.product(rows := x.numel() // self.width)
        if own is None:
            return tuple([product(x, linear.weight, linear.bias) for linear in self.linears])
        return own(x, rows).split_with_sizes(self.sizes, dim=-1)

    def product(self, rows: int) -> Product | None:
        """Return the copy for a number of rows; None to use the plain weights, or while a weight is substituted."""
        for parameters, weight in self.weights:
            if parameters["weight"] is not weight:  # functional_call substitutes weights
                return None
        return self.products[rows]

    def _product(self, rows: int) -> Product | None:
        way = self.choose(self.linears, rows)
        if way is None:
            return None
        if way not in self.copies:
            self.copies[way] = self.make(self.linears, way)
        return self.copies[way]


class Copied(nn.Linear):
    """View of a linear layer that computes with a copy of the weight and bypasses hooks."""

    layers: Layers

    def forward(self, input: Tensor) -> Tensor:
        layers = self.layers
        own = layers.product(rows := input.numel() // layers.width)
        return product(input, self.weight, self.bias) if own is None else own(input, rows)

    __call__ = forward


def copied(layers: Layers) -> Copied:
    """Return a view of the single layer in `layers`."""
    layer: Copied = object.__new__(Copied)
    vars(layer).update(vars(layers.linears[0]), layers=layers)
    return layer


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Concatenate the weights and biases of linear layers. The bias is None if no layer has one."""
    if len(linears) == 1:
        return linears[0].weight.detach(), None if linears[0].bias is None else linears[0].bias.detach()
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias for linear in linears]
    )
