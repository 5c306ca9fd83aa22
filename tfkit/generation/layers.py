"""Linear layers for decoding, which may compute with faster copies of their weights, fused by input."""

# Axes: width (input channels), out (output channels of a layer). Each forward maps [... width] to [... out].

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.generation.products import Product

Kind = Callable[[Tensor, Tensor | None], Product]  # weight, bias -> a copy
Make = Callable[[Sequence[nn.Linear], Kind], Product | None]


class ByRows(dict[int, Product | None]):
    """Cache: number of rows -> packed weight, or None for the plain weight."""

    def __init__(self, find: Callable[[int], Product | None]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, rows: int) -> Product | None:
        self[rows] = product = self.find(rows)
        return product


class Layers:
    """Linear layers with a common input, computed with the fastest kind of copy for the number of rows.

    `make` builds a copy on first use, or returns None to use the plain weights.
    """

    def __init__(self, linears: Sequence[nn.Linear], kinds: Sequence[tuple[range, Kind]], make: Make) -> None:
        self.linears = linears
        self.kinds = kinds
        self.make = make
        self.weights = [(linear._parameters, linear.weight) for linear in linears]
        self.sizes = [linear.out_features for linear in linears]
        self.width = linears[0].in_features
        self.copies: dict[Kind, Product | None] = {}
        self.products = ByRows(self._product)

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute [... width] -> [... out] for each layer."""
        product = self.product(rows := x.numel() // self.width)
        if product is None:
            return tuple([F.linear(x, linear.weight, linear.bias) for linear in self.linears])
        return product(x, rows).split_with_sizes(self.sizes, dim=-1)

    def product(self, rows: int) -> Product | None:
        """Return the copy for a number of rows; None to use the plain weights, or while a weight is substituted."""
        for parameters, weight in self.weights:
            if parameters["weight"] is not weight:  # functional_call substitutes weights
                return None
        return self.products[rows]

    def _product(self, rows: int) -> Product | None:
        for useful, kind in self.kinds:
            if rows in useful:
                if kind not in self.copies:
                    self.copies[kind] = self.make(self.linears, kind)
                return self.copies[kind]
        return None


class Copied(nn.Linear):
    """View of a linear layer that computes with a copy of the weight and bypasses hooks."""

    layers: Layers

    def forward(self, input: Tensor) -> Tensor:
        layers = self.layers
        product = layers.product(rows := input.numel() // layers.width)
        return F.linear(input, self.weight, self.bias) if product is None else product(input, rows)

    __call__ = forward


def copied(layers: Layers) -> Copied:
    """Return a view of the single layer in `layers`."""
    layer: Copied = object.__new__(Copied)
    vars(layer).update(vars(layers.linears[0]), layers=layers)
    return layer


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Concatenate the weights and biases of linear layers. The bias is None if no layer has one."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears]
    )
