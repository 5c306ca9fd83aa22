"""Any optimizer of torch.optim, by its name."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import nn

from tfkit.core.registry import nearest, register
from tfkit.training.optimizer.base import Optimizer, made

REFUSED = {
    "LBFGS": "it evaluates the loss several times a step, which the training loop does not",
    "SparseAdam": "it wants sparse gradients, which no part here makes",
    "Muon": "it takes matrices only, and a model has vectors too",
}


def usable() -> dict[str, type[torch.optim.Optimizer]]:
    """The classes of torch.optim that the training loop can use, by name."""
    found = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    bases = (torch.optim.Optimizer,)
    return {
        name: kind
        for name, kind in found.items()
        if issubclass(kind, bases) and kind not in bases and name not in REFUSED
    }


@register("optimizer", "torch")
class Torch(Optimizer):
    """An optimizer of PyTorch by its class name (docs.pytorch.org/docs/stable/optim.html)."""

    example: ClassVar = {"name": "SGD"}

    class Config(Optimizer.Config):
        """Options of torch."""

        name: str = Field(description="the class in torch.optim, such as SGD")
        options: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments, all but lr")
        decay_norms_and_biases: bool = Field(False, description="let norms, biases and other vectors decay too")

        @model_validator(mode="after")
        def _exists(self) -> Torch.Config:
            if self.name in REFUSED:
                raise ValueError(f"torch.optim.{self.name} cannot be used here: {REFUSED[self.name]}")
            kinds = usable()
            if self.name not in kinds:
                raise ValueError(_unknown("torch.optim has no optimizer", self.name, sorted(kinds)))
            _check_options(kinds[self.name], self.arguments())
            return self

        def arguments(self) -> dict[str, Any]:
            """The keyword arguments; a list of a recipe is a tuple in Python."""
            return {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kind = usable()[config.name]
        self.options = config.arguments()
        self.decay_all = config.decay_norms_and_biases

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """An optimizer of that class; norms and biases do not decay, unless decay_norms_and_biases is set."""
        return made(self.kind, model, lr, self.options, self.decay_all)


def _check_options(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """Raise ValueError for what that class does not take, found by creating one for a small parameter."""
    if "lr" in options:
        raise ValueError("options.lr: the learning rate belongs to the schedule")
    known = [name for name in inspect.signature(kind).parameters if name not in ("self", "params", "lr")]
    for name in options:
        if name not in known:
            raise ValueError(_unknown(f"{kind.__name__} has no option", name, known))
    try:
        kind([nn.Parameter(torch.zeros(2, 2))], lr=1e-3, **options)  # type: ignore[call-arg]
    except Exception as error:  # each class checks in its own way
        raise ValueError(f"{kind.__name__} refuses its options: {error}") from None


def _unknown(what: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"{what} '{name}'. " + (f"Did you mean '{hint}'?" if hint else f"There are: {', '.join(known)}")
