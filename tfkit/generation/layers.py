"""Linear layers while a model decodes: by a copy of their weights where that is quicker, one for all with one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.generation.products import Product

Make = Callable[[Sequence[nn.Linear]], Product | None]


class Layers:
    """Linear layers that read the same input; `make` copies their weights the first time that there are so many `rows`.

    It gives None where there is to be no copy.
    """

    def __init__(self, linears: Sequence[nn.Linear], rows: range, make: Make) -> None:
        self.linears = linears
        self.rows = rows
        self.make = make
        self.sizes = [linear.out_features for linear in linears]
        self.width = linears[0].in_features
        self.made: Product | None = None
        self.tried = False

    def product(self, rows: int) -> Product | None:
        """The copy, where it is of use for so many rows."""
        if rows not in self.rows:
            return None
        if not self.tried:
            self.tried = True
            self.made = self.make(self.linears)
        return self.made

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """[... width] -> [... out] of each layer."""
        rows = x.numel() // self.width
        product = self.product(rows)
        if product is None:
            return tuple([F.linear(x, linear.weight, linear.bias) for linear in self.linears])
        return product(x, rows).split_with_sizes(self.sizes, dim=-1)


class Single(Layers):
    """A linear layer by itself: called as the layer, and otherwise what the layer is."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.width
        product = self.product(rows)
        if product is None:
            return F.linear(x, self.linears[0].weight, self.linears[0].bias)
        return product(x, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.linears[0], name)


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The weights of linear layers under one another, and their biases; None where no layer has one."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears]
    )
