"""Linear layers while a model decodes: by a copy of their weights where that is quicker, one for all with one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.generation.products import Product

Kind = Callable[[Tensor, Tensor | None], Product]  # weight, bias -> a copy
Make = Callable[[Sequence[nn.Linear], Kind], Product | None]


class ByRows(dict[int, Product | None]):
    """The copy that so many rows are multiplied by, looked for once; None: the weights themselves."""

    def __init__(self, find: Callable[[int], Product | None]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, rows: int) -> Product | None:
        self[rows] = found = self.find(rows)
        return found


class Layers:
    """Linear layers that read the same input, by the kind of copy that is quickest for so many rows, if any is.

    `make` makes a copy the first time that it is of use, or gives None where there is to be none.
    """

    def __init__(self, linears: Sequence[nn.Linear], kinds: Sequence[tuple[range, Kind]], make: Make) -> None:
        self.linears = linears
        self.kinds = kinds
        self.make = make
        self.weights = [(linear._parameters, linear.weight) for linear in linears]
        self.sizes = [linear.out_features for linear in linears]
        self.width = linears[0].in_features
        self.made: dict[Kind, Product | None] = {}
        self.products = ByRows(self._product)

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """[... width] -> [... out] of each layer."""
        product = self.product(rows := x.numel() // self.width)
        if product is None:
            return tuple([F.linear(x, linear.weight, linear.bias) for linear in self.linears])
        return product(x, rows).split_with_sizes(self.sizes, dim=-1)

    def product(self, rows: int) -> Product | None:
        """The copy that so many rows are multiplied by; None where a layer has another weight for the time being."""
        for parameters, weight in self.weights:
            if parameters["weight"] is not weight:  # functional_call puts one in its place
                return None
        return self.products[rows]

    def _product(self, rows: int) -> Product | None:
        for useful, kind in self.kinds:
            if rows in useful:
                if kind not in self.made:
                    self.made[kind] = self.make(self.linears, kind)
                return self.made[kind]
        return None


class Copied(nn.Linear):
    """A view of a linear layer that computes by a copy of its weight; nobody watches it."""

    layers: Layers

    def forward(self, input: Tensor) -> Tensor:
        layers = self.layers
        product = layers.product(rows := input.numel() // layers.width)
        return F.linear(input, self.weight, self.bias) if product is None else product(input, rows)

    __call__ = forward


def copied(layers: Layers) -> Copied:
    """The view of a single layer."""
    made: Copied = object.__new__(Copied)
    vars(made).update(vars(layers.linears[0]), layers=layers)
    return made


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The weights of linear layers under one another, and their biases; None where no layer has one."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears]
    )
