"""my_part: a custom adapter, which adds a few trainable weights to a frozen model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from pydantic import Field
from torch import nn

import tfkit
from tfkit.training.adapter import Adaptation, Adapter


class Scales(Adaptation):
    """A learned factor on each output of the given linear layers."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.linears = linears
        self.factors = nn.ParameterList(torch.ones_like(linear.weight[:, 0]) for linear in linears)
        self.is_merged = False
        for linear, factor in zip(linears, self.factors, strict=True):
            # Change this: how the adapter changes the computation of the model.
            linear.register_forward_hook(lambda _, given, output, by=factor: output if self.is_merged else output * by)

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        # Change this too: the same computation by modified weights, which are restored afterwards.
        weights = [weight for linear in self.linears for weight in linear.parameters(recurse=False)]
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for linear, factor in zip(self.linears, self.factors, strict=True):
                linear.weight.mul_(factor[:, None])
                if linear.bias is not None:
                    linear.bias.mul_(factor)
        self.is_merged = True
        try:
            yield
        finally:
            self.is_merged = False
            with torch.no_grad():
                for weight, before in zip(weights, kept, strict=True):
                    weight.copy_(before)


@tfkit.register("adapter", "my_part")
class MyPart(Adapter):
    """Learned factors on the outputs of one projection in every layer."""

    # Options of the part, as written in a recipe: {type: my_part, on: value}. Add your own here.
    class Config(Adapter.Config):
        on: str = Field("value", description="last component of the names of the linear layers")

    config: Config

    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        found = [one for name, one in model.named_modules() if name.endswith(f".{self.config.on}")]
        return Scales([one for one in found if isinstance(one, nn.Linear)])
