"""Base of the residual layouts: how a layer's sublayers and norms are wired around the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.capabilities import TOKENWISE
from tfkit.core.context import Context
from tfkit.core.shape import Shape
from tfkit.core.slots import ResidualFacts


@dataclass(eq=False)  # a callable compared by value would be hashed by the compiler of torch 2.11
class Branch:
    """A named sublayer as a layout sees it: a function of x, with the norms that the layout asked for.

    `context` is what the sublayer is called with: for cross-attention, the memory's.
    """

    name: str
    sublayer: Callable[[Tensor, Context], Tensor]
    context: Context
    dropout: Callable[[Tensor], Tensor]
    norms: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Scale * Dropout(Sublayer(x))."""
        out = self.dropout(self.sublayer(x, self.context))
        return out if self.scale == 1.0 else self.scaled(out)

    def bare(self, x: Tensor) -> Tensor:
        """Dropout(Sublayer(x)), for layouts that norm it: a norm would undo the scale, which follows it."""
        return self.dropout(self.sublayer(x, self.context))

    def scaled(self, out: Tensor) -> Tensor:
        """Scale * out."""
        return out if self.scale == 1.0 else out * self.scale

    def norm(self, x: Tensor) -> Tensor:
        """The norm called `<name>_norm`."""
        return self.norms[f"{self.name}_norm"](x)

    def output_norm(self, x: Tensor) -> Tensor:
        """The second norm of the layouts that have two, called `<name>_output_norm`."""
        return self.norms[f"{self.name}_output_norm"](x)


class Residual(ResidualFacts, nn.Module):
    """A layout; `forward` is the equation."""

    capabilities = TOKENWISE | {"cross_attention"}

    def __init__(self, config: component.Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        """[batch time d_model] -> the same, through all branches."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")
