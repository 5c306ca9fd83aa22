"""Norms.

| type | choose it when |
|---|---|
| layer_norm | the original, BERT, GPT-2, BART and most models before 2022 |
| rms_norm | T5, Llama, Gemma and most models since: no mean, no bias, a little cheaper |
"""

# Axes: width (channels), group (of channels), size (channels of a group).
# Each forward maps [... width] to the same shape.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.component import Config, Problem, Shape, Unlearnable
from tfkit.core.errors import UsageError
from tfkit.core.inputs import TOKENWISE
from tfkit.core.options import Number, PositiveFloat, Width
from tfkit.core.registry import register
from tfkit.core.store import StoreFacts
from tfkit.functional.view import wide


class Norm(StoreFacts, nn.Module):
    """Normalizes [... width]; built with a Shape whose `d_model` is that width.

    A norm that declares `writes` or `reads` is called with `context=`; only norms of layers and stacks can.
    """

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Map [... width] to the same shape."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


class GroupedConfig(component.Config):
    """Options of the norms that support groups of channels."""

    group_size: Width | None = Field(
        None, description="number of channels normalized together, with a weight for each (Cohere: head_dim); none: all"
    )

    # group sizes too small to learn from -> the only information that normalization keeps
    leaves: ClassVar[Mapping[int, str]] = {}

    def check(self, shape: Shape) -> Iterator[Problem]:
        if self.group_size is not None and shape.d_model % self.group_size:
            yield Problem(
                "group_size",
                f"groups of {self.group_size} channels do not divide the width {shape.d_model}; use a divisor",
            )
        width = self.group_size or shape.d_model
        if width in self.leaves:
            option = "" if self.group_size is None else "group_size"
            least = max(self.leaves) + 1
            text = f"'{self.part.part_name}' of {width} channel{'s' * (width > 1)} keeps {self.leaves[width]}"
            yield Unlearnable(option, f"{text}, so nothing before it learns; use at least {least} channels")


def grouped(x: Tensor, size: int) -> Tensor:
    """Split [... width] into groups of `size` channels, [... group size]. Raise UsageError if `size` does not fit."""
    if x.shape[-1] % size:
        raise UsageError(f"groups of {size} channels do not divide the width {x.shape[-1]}; use a divisor")
    return rearrange(x, "... (group channel) -> ... group channel", channel=size)


def ungrouped(x: Tensor) -> Tensor:
    """Map [... group size] to [... width]."""
    return rearrange(x, "... group channel -> ... (group channel)")


@register("norm", "layer_norm")
class LayerNorm(Norm):
    """y = (weight_offset + weight) * (x - mean(x)) / sqrt(var(x) + eps) + bias (Ba et al. 2016, arXiv 1607.06450)."""

    class Config(GroupedConfig):
        eps: PositiveFloat = Field(1e-5, description="added to the variance")
        bias: bool = Field(True, description="add a learned bias")
        affine: bool = Field(True, description="learn weight and bias; false: neither")
        weight_offset: Number = Field(0.0, description="added to the weight; with 1, a weight of 0 is neutral")

        leaves = {1: "only its bias", 2: "only which channel is larger"}

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model,), 1.0 - config.weight_offset)) if config.affine else None
        self.bias = nn.Parameter(torch.zeros(shape.d_model)) if config.affine and config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        size = self.config.group_size
        if size is None and (not self.config.weight_offset or self.weight is None):
            return torch.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.config.eps)
        # in half precision, small weights would be lost in 1 + weight
        weight = None if self.weight is None else self.config.weight_offset + wide(self.weight)
        bias = None if self.bias is None else wide(self.bias)
        if size is None:
            return F.layer_norm(wide(x), x.shape[-1:], weight, bias, self.config.eps).to(x.dtype)
        y = ungrouped(F.layer_norm(grouped(wide(x), size), (size,), eps=self.config.eps))  # [... width]
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)


@register("norm", "rms_norm")
class RMSNorm(Norm):
    """y = (weight_offset + weight) * x / sqrt(mean(x²) + eps) + bias (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    class Config(GroupedConfig):
        eps: PositiveFloat = Field(1e-6, description="added to the mean square")
        bias: bool = Field(False, description="add a learned bias")
        affine: bool = Field(True, description="learn the weight, and the bias if enabled; false: neither")
        weight_offset: Number = Field(0.0, description="added to the weight; with 1, a weight of 0 is neutral (Gemma)")

        leaves = {1: "only the sign"}

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model,), 1.0 - config.weight_offset)) if config.affine else None
        self.bias = nn.Parameter(torch.zeros(shape.d_model)) if config.affine and config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        # offset, weight and bias are applied before the result is rounded to half precision
        weight = None if self.weight is None else wide(self.weight)
        if weight is not None and self.config.weight_offset:
            weight = self.config.weight_offset + weight
        size = self.config.group_size
        if size is None:
            y = F.rms_norm(wide(x), x.shape[-1:], weight, self.config.eps)
        else:
            y = ungrouped(F.rms_norm(grouped(wide(x), size), (size,), eps=self.config.eps))  # [... width]
            y = y if weight is None else y * weight
        return (y if self.bias is None else y + wide(self.bias)).to(x.dtype)
