"""Adapters, a few trainable weights attached to a frozen model and merged into it; activation recomputation.

| type | choose it when |
|---|---|
| lora | you fine-tune a pretrained model with little memory: low-rank updates of named projections |
"""

# Axes: batch, time, rank, in and out (input and output width of a projection).

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from tfkit.components.feedforward.experts import Routing
from tfkit.core.component import Component, Problem
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.options import Names, PositiveFloat, PositiveInt
from tfkit.core.output import counted, some
from tfkit.core.registry import register
from tfkit.core.skeleton import skeleton
from tfkit.functional.dropout import Dropout
from tfkit.models.stack import Stack
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.parameters import matches, named, unknown

ON = ("query", "value")  # projections that are adapted by default
Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


class Adapter(Component):
    """Base class of adapters: `attach` adds trainable weights to a frozen model."""

    class Config(RecipeConfig):
        also: Names = Field((), description="parameters of the model to train in full, such as a new head: head.*")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            parameters = {} if facts.blueprint is None else dict(skeleton(facts.blueprint).named_parameters())
            for place, pattern in enumerate(self.also if parameters else ()):
                if not named(pattern, parameters):
                    yield Problem(f"also[{place}]", *unknown(pattern, parameters))

    config: Config

    def __init__(self, config: Config) -> None:
        self.config = config

    def freeze(self, model: nn.Module) -> None:
        """Freeze all parameters except those matched by `also`."""
        model.requires_grad_(False)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for pattern in self.config.also:
            for parameter in named(pattern, parameters):
                parameter.requires_grad_(True)

    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        """Attach trainable weights to a frozen model. Its initial outputs must not change."""
        raise NotImplementedError(f"{type(self).__name__} has no attach")


class Adaptation(nn.Module):
    """The trainable weights of an adapter. They are not part of the model's state_dict."""

    def merged(self) -> contextlib.AbstractContextManager[None]:
        """Add the update to the model's weights within the block, then restore the original weights exactly."""
        raise NotImplementedError(f"{type(self).__name__} has no merged")

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights under their names in adapter.safetensors."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def told(self) -> str:
        """Describe the adapted modules for the log."""
        return counted(len(self.tensors()), "tensor")

    def check_used(self) -> None:
        """Raise UsageError if a weight has no gradient after a backward pass."""
        names = dict(zip((id(value) for value in self.parameters()), self.tensors(), strict=True))
        idle = [names[id(value)] for value in self.parameters() if value.grad is None]
        if idle:
            raise UsageError(f"train.adapter: {some(idle)}: the model does not use these weights; check `on`")


class LowRank(nn.Module):
    """x -> scale * up(down(dropout(x))), initially zero."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        down = torch.empty(rank, linear.in_features)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.down = nn.Parameter(down.to(linear.weight))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank).to(linear.weight))
        self.scale, self.dropout = scale, Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.linear(self.dropout(x), self.down)  # [batch time rank]
        return functional.linear(inner, self.up) * self.scale  # [batch time out]

    def update(self) -> Tensor:
        """Return the equivalent weight update [out, in]."""
        return self.scale * (self.up @ self.down)


class LowRankAdaptation(Adaptation):
    """One low-rank update per linear layer. `linears` maps names to layers."""

    def __init__(self, linears: Mapping[str, nn.Linear], rank: int, scale: float, dropout: float, seed: int) -> None:
        super().__init__()
        self.linears = list(linears.values())  # a plain list: the layers are not submodules of the adapter
        self.names = list(linears)
        generator = torch.Generator().manual_seed(seed)
        self.low_ranks = [LowRank(one, rank, scale, dropout, generator) for one in self.linears]
        self.pairs = nn.ModuleList(self.low_ranks)
        self.is_merged = False
        for linear, pair in zip(self.linears, self.low_ranks, strict=True):
            linear.register_forward_hook(self._adding(pair))

    def tensors(self) -> dict[str, Tensor]:
        pairs = zip(self.names, self.low_ranks, strict=True)
        return {f"{name}.{key}": value.detach() for name, pair in pairs for key, value in pair.named_parameters()}

    def told(self) -> str:
        return f"{counted(len(self.names), 'projection')}: {some(self.names)}"

    def _adding(self, pair: nn.Module) -> Hook:
        def add(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output if self.is_merged else output + pair(given[0])

        return add

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        kept = [linear.weight.detach().clone() for linear in self.linears]
        with torch.no_grad():
            for linear, pair in zip(self.linears, self.low_ranks, strict=True):
                linear.weight += pair.update()
        self.is_merged = True
        try:
            yield
        finally:
            self.is_merged = False
            with torch.no_grad():
                for linear, weight in zip(self.linears, kept, strict=True):
                    linear.weight.copy_(weight)


def projections(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Linear]:
    """Return the linear layers selected by `names`: last name components within layers, or patterns of full names."""
    found = {}
    for path, module in model.named_modules():
        is_named = ".layers." in path and path.rpartition(".")[2] in names
        if isinstance(module, nn.Linear) and (is_named or matches(path, names)):
            found[path] = module
    return found


@register("adapter", "lora")
class Lora(Adapter):
    """W x + (alpha / rank) * B A x with trainable A [rank, in] and B [out, rank] (Hu et al. 2021, arXiv 2106.09685)."""

    class Config(Adapter.Config):
        rank: PositiveInt = Field(8, description="rank of each update")
        alpha: PositiveFloat = Field(16.0, description="each update is multiplied by alpha / rank")
        on: Annotated[Names, Field(min_length=1)] = Field(
            ON, description="modules in each layer, given by the last part of their name or by patterns of full names"
        )
        dropout: DropoutRate = Field(0.0, description="dropout on the input of each update")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if facts.blueprint is None:
                return
            model = skeleton(facts.blueprint)
            for name in self.on:
                if not projections(model, [name]):
                    linear = [path for path, one in model.named_modules() if isinstance(one, nn.Linear)]
                    within = (path.rpartition(".")[2] for path in linear if ".layers." in path)
                    known = ", ".join(dict.fromkeys(within)) or some(linear)
                    yield Problem("on", f"no linear layer is called '{name}'; available: {known}")
            found = projections(model, self.on)
            width, narrowest = min((_width(one), name) for name, one in found.items()) if found else (self.rank, "")
            if width < self.rank:
                yield Problem("rank", f"{self.rank} exceeds the width {width} of {narrowest}; use at most {width}")
            if tied := _tied(model, found):
                yield Problem(
                    "on",
                    f"{some(tied)} shares its weight with another module, which would change too; leave it out of `on`",
                )

    config: Config

    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        """Attach an update to each projection. The initial A depends only on the seed."""
        config, linears = self.config, projections(model, self.config.on)
        return LowRankAdaptation(linears, config.rank, config.alpha / config.rank, config.dropout, seed)


def _width(linear: nn.Linear) -> int:
    """Return the maximum useful rank; the input width if there is one output: its number may be unknown still."""
    return linear.in_features if linear.out_features == 1 else min(linear.in_features, linear.out_features)


def _tied(model: nn.Module, linears: Mapping[str, nn.Linear]) -> list[str]:
    """Return the names of layers whose weight is shared with another module."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for value in module._parameters.values():
            owners[id(value)] = owners.get(id(value), 0) + 1
    return [name for name, linear in linears.items() if owners[id(linear.weight)] > 1]


def recompute_layers(recipe: Recipe, trained: nn.Module) -> None:
    """Apply `train.recompute` to all stacks. Raise RecipeError if it would change the gradients."""
    requested = recipe.train.recompute
    stacks = [module for module in trained.modules() if isinstance(module, Stack)]
    if requested and (problem := _problem(stacks, trained)):
        raise RecipeError([recipe.fault("train.recompute", problem)])
    for stack in stacks:
        stack.recompute = len(stack.layers) if requested == "all" else requested


def _problem(stacks: list[Stack], trained: nn.Module) -> str:
    if any(stack.plan.last_state for stack in stacks):
        return "layers of this model carry state between calls, which recomputation would change; remove this key"
    if any(isinstance(module, Routing) and module.config.selection_rate for module in trained.modules()):
        text = "each forward updates the selection bias of experts, so recomputation would choose other experts"
        return f"{text}; remove this key, or set router.selection_rate: 0"
    return ""
