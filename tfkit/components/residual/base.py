"""Base of the residual layouts: how a layer's sublayers and norms are wired around the residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from tfkit.core.component import Component, Config
from tfkit.core.context import Context
from tfkit.core.shape import Shape


@dataclass(frozen=True, eq=False)  # a callable compared by value would be hashed by the compiler of torch 2.11
class Branch:
    """A named sublayer as a layout sees it: a function of x, with the norms that the layout asked for.

    `context` is what the sublayer is called with: for cross-attention, the memory's.
    """

    name: str
    sublayer: nn.Module
    context: Context
    dropout: nn.Module
    norms: Mapping[str, nn.Module] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        """Dropout(Sublayer(x))."""
        out: Tensor = self.dropout(self.sublayer(x, self.context))
        return out

    def norm(self, x: Tensor) -> Tensor:
        """The norm called `<name>_norm`."""
        out: Tensor = self.norms[f"{self.name}_norm"](x)
        return out

    def output_norm(self, x: Tensor) -> Tensor:
        """The second norm of the layouts that have two, called `<name>_output_norm`."""
        out: Tensor = self.norms[f"{self.name}_output_norm"](x)
        return out


class Residual(Component, nn.Module):
    """A layout; `forward` is the equation."""

    # whether a stack whose last layer has this layout ends in a norm
    final_norm: ClassVar[bool] = False

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        """The layer's norms by name, each with the sublayer whose `<sublayer>_norm` option may replace it (or None)."""
        return {f"{name}_norm": name for name in sublayers}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        """[batch time d_model] -> the same, through all branches."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    @classmethod
    def init_gain(cls, config: Config, shape: Shape) -> float:
        """A factor on the initial weights of values, outputs and feed-forward, where a paper asks for one."""
        return 1.0
