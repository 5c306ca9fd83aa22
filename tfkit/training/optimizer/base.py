"""Base of the optimizers: which parameters are trained, and which of them decay."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import nn

from tfkit.components.norm.base import Norm
from tfkit.core.component import Component
from tfkit.core.component import Config as PartConfig
from tfkit.core.errors import UsageError
from tfkit.core.options import as_tuple

FUSED_DEVICES = {"cpu", "cuda", "xpu", "mps"}
LAUNCH_OPTIONS = {"fused", "foreach", "capturable", "differentiable"}  # ways to compute the same step


Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Beta, Beta], BeforeValidator(as_tuple)]


class Optimizer(Component):
    """Base of the optimizers: `make` gives a torch.optim.Optimizer for a model."""

    class Config(PartConfig):
        """Options of every optimizer."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """An optimizer of the model's trainable parameters; the schedule sets `lr` anew before each step."""
        raise NotImplementedError(f"{type(self).__name__} has no make")


def parameter_groups(model: nn.Module, decay_norms_and_biases: bool) -> list[dict[str, Any]]:
    """The trainable parameters, a tied one once: those that decay, and norms, biases and other vectors with decay 0."""
    norms = {
        id(parameter) for module in model.modules() if isinstance(module, Norm) for parameter in module.parameters()
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("there is nothing to train: every parameter is frozen")
    if decay_norms_and_biases:
        return [{"params": trained}]
    spared = [parameter for parameter in trained if parameter.dim() < 2 or id(parameter) in norms]
    decayed = [parameter for parameter in trained if parameter.dim() >= 2 and id(parameter) not in norms]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def made(
    kind: type[torch.optim.Optimizer], model: nn.Module, lr: float, options: dict[str, Any], decay_all: bool
) -> torch.optim.Optimizer:
    """An optimizer of that class, its step fused into one kernel where the class and the device can."""
    known = inspect.signature(kind).parameters
    groups = parameter_groups(model, decay_all or "weight_decay" not in known)
    if "fused" in known and not LAUNCH_OPTIONS & options.keys():
        devices = {parameter.device.type for group in groups for parameter in group["params"]}
        options = options | ({"fused": True} if devices <= FUSED_DEVICES else {})
    try:
        return kind(groups, lr=lr, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{kind.__name__} cannot train this model: {error}") from None
