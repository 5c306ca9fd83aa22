"""Base of the norms: x -> x of the same shape, over the last axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Component, Config, Problem, Unlearnable
from tfkit.core.errors import UsageError
from tfkit.core.options import Width
from tfkit.core.shape import Shape


class Norm(Component, nn.Module):
    """Normalises [... width]; built with a Shape whose `d_model` is that width."""

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[... width] -> [... width]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


class GroupedConfig(component.Config):
    """Options of the norms that can work on groups of channels."""

    group_size: Width | None = Field(
        None, description="channels normed together, each with a weight of its own; none: all (Cohere: head_dim)"
    )

    # what is left of so few channels: nothing that a gradient goes through
    leaves: ClassVar[Mapping[int, str]] = {}

    def check(self, shape: Shape) -> Iterator[Problem]:
        if self.group_size is not None and shape.d_model % self.group_size:
            yield Problem("group_size", f"groups of {self.group_size} channels do not divide the width {shape.d_model}")
        width = self.group_size or shape.d_model
        if width in self.leaves:
            option = "" if self.group_size is None else "group_size"
            least = max(self.leaves) + 1
            text = f"of {width} channel{'s' * (width > 1)} '{self.part.part_name}' leaves {self.leaves[width]}"
            yield Unlearnable(option, f"{text}, so that nothing before it learns; it needs at least {least}")


def grouped(x: Tensor, size: int) -> Tensor:
    """[... width] as groups of `size` channels, [... group size]; raises UsageError where they do not divide it."""
    if x.shape[-1] % size:
        raise UsageError(f"a norm in groups of {size} channels cannot work on a width of {x.shape[-1]}")
    return rearrange(x, "... (group channel) -> ... group channel", channel=size)


def ungrouped(x: Tensor) -> Tensor:
    """[... group size] -> [... width]."""
    return rearrange(x, "... group channel -> ... (group channel)")
