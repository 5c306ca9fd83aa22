"""Optimizers, and parameter groups with their own learning rate and decay. Learning rates are set by the schedule.

| type | choose it when |
|---|---|
| adam | you follow the original paper, or use the inverse square root schedule |
| adamw | you want the usual choice since 2018: weight decay decoupled from the gradient |
| muon | you train a language model in fewer steps: updates of matrices are orthogonalized, the rest uses AdamW |
| torch | you want another PyTorch optimizer, by name: SGD, RAdam, NAdam, Adafactor, ... |
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from tfkit.components.norm import Norm
from tfkit.core.component import Component, Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.options import Names, NonNegativeFloat, PositiveFloat, as_tuple
from tfkit.core.output import counted
from tfkit.core.registry import register
from tfkit.core.skeleton import skeleton
from tfkit.core.synonyms import nearest
from tfkit.models import Model
from tfkit.models.parametrization import growths
from tfkit.recipe.settings.parameters import decay_of, depths_of, hidden_matrices, parameters_of, rate_of
from tfkit.recipe.settings.sections import Train

RATE = "rate"  # key of a group's learning-rate factor
ADAM = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax)
SHOWN = 6  # maximum number of groups listed individually


@dataclass(frozen=True)
class Share:
    """Factors on a parameter's learning rate, weight decay and eps. `weight_decay` overrides the optimizer's."""

    rate: float = 1.0
    weight_decay: float | None = None
    decay: float = 1.0
    eps: float = 1.0


def regroup(optimizer: torch.optim.Optimizer, model: Model, settings: Train) -> list[str]:
    """Split an optimizer's groups by `train.groups`, `train.layer_decay` and muP. Return lines that describe them.

    Raise UsageError if a group sets a weight decay but the optimizer has none, or if muP is used without Adam.
    """
    chosen = model.blueprint.parametrization
    if not settings.groups and settings.layer_decay is None and chosen is None:
        return [_line(group) for group in optimizer.param_groups if "by" in group]
    if chosen is not None and not isinstance(optimizer, ADAM):
        raise UsageError(f"model.parametrization: requires a variant of Adam, got {type(optimizer).__name__}")
    shares = _shares(model, settings)
    optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in _parts(group, shares)]
    groups = optimizer.param_groups
    if len(groups) <= SHOWN:
        return [_line(group) for group in groups]
    rates = sorted({group[RATE] for group in groups})
    return [f"{len(groups)} groups of parameters, with learning rates x {rates[0]:.4g} to x {rates[-1]:.4g}"]


def _shares(model: Model, settings: Train) -> dict[int, Share]:
    """Return the `Share` of each parameter, by id."""
    depths = depths_of(model.blueprint)
    found = {
        id(one.value): Share(
            rate_of(one, settings.groups, settings.layer_decay, depths), decay_of(one, settings.groups)
        )
        for one in parameters_of(model)
    }
    chosen = model.blueprint.parametrization
    for growth in growths(model, model.blueprint) if chosen is not None else ():
        share, exponent = found[id(growth.weight)], chosen.depth_exponent if chosen is not None else 1.0
        rate = share.rate * growth.rate(exponent)
        found[id(growth.weight)] = replace(share, rate=rate, decay=growth.decay, eps=growth.eps(exponent))
    return found


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, scaled by its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(RATE, 1.0)


def _parts(group: dict[str, Any], shares: dict[int, Share]) -> list[dict[str, Any]]:
    """Split a group into one group per distinct `Share`."""
    parts: dict[Share, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(shares.get(id(parameter), Share()), []).append(parameter)
    options = {key: value for key, value in group.items() if key != "params"}
    return [{**options, "params": found, RATE: share.rate} | _own(group, share) for share, found in parts.items()]


def _own(group: dict[str, Any], share: Share) -> dict[str, float]:
    """Return the weight decay and eps of a share, if they differ from the group's."""
    if share.weight_decay is not None and "weight_decay" not in group:
        raise UsageError("train.groups: this optimizer has no weight_decay; use adamw")
    decay = group.get("weight_decay", 0.0) if share.weight_decay is None else share.weight_decay
    own = {"weight_decay": decay * share.decay} if share.weight_decay is not None or share.decay != 1.0 else {}
    return own | ({"eps": group["eps"] * share.eps} if share.eps != 1.0 and "eps" in group else {})


def _line(group: dict[str, Any]) -> str:
    numbers = sum(parameter.numel() for parameter in group["params"])
    decay = f", weight decay {group['weight_decay']:g}" if "weight_decay" in group else ""
    by = f"{group['by']}, " if "by" in group else ""
    sizes = f"{counted(len(group['params']), 'tensor')}, {counted(numbers, 'number')}"
    return f"{by}rate x {group.get(RATE, 1.0):.4g}{decay}: {sizes}"


FUSED_DEVICES = {"cpu", "cuda", "xpu", "mps"}
LAUNCH_OPTIONS = {"fused", "foreach", "capturable", "differentiable"}  # options that do not change the update
Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Beta, Beta], BeforeValidator(as_tuple)]


class Optimizer(Component):
    """Base class of optimizers: `make` returns a torch.optim.Optimizer for a model."""

    class Config(RecipeConfig):
        """Options of all optimizers."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Create an optimizer for the trainable parameters. The schedule later sets `lr` before each step."""
        raise NotImplementedError(f"{type(self).__name__} has no make")


Group = dict[str, Any]  # a parameter group of torch: `params` and their options


def parameter_groups(model: nn.Module, decay_norms_and_biases: bool) -> list[Group]:
    """Group the distinct trainable parameters: matrices, and norms, biases and other vectors with weight decay 0."""
    norms = {
        id(parameter) for module in model.modules() if isinstance(module, Norm) for parameter in module.parameters()
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("nothing to train: every parameter is frozen")
    if decay_norms_and_biases:
        return [{"params": trained}]
    spared = [parameter for parameter in trained if parameter.dim() < 2 or id(parameter) in norms]
    decayed = [parameter for parameter in trained if parameter.dim() >= 2 and id(parameter) not in norms]
    groups: list[Group] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def eager(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Derive a class without torch's wrappers for torch.compile, which import torch._dynamo and so take a second."""
    wrapped = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, **methods})


def made(
    kind: type[torch.optim.Optimizer], groups: list[Group], lr: float, options: dict[str, Any]
) -> torch.optim.Optimizer:
    """Create an optimizer of this class, fused if the class and the devices support it."""
    known = inspect.signature(kind).parameters
    if kind.__module__.startswith("torch.optim.") and not options.get("differentiable"):
        kind = eager(kind)
    if "fused" in known and not LAUNCH_OPTIONS & options.keys():
        devices = {parameter.device.type for group in groups for parameter in group["params"]}
        options = options | ({"fused": True} if devices <= FUSED_DEVICES else {})
    try:
        return kind(groups, lr=lr, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{kind.__name__} cannot train this model: {error}") from None


@register("optimizer", "adam")
class Adam(Optimizer):
    """x -= lr * mean(g) / (sqrt(mean(g²)) + eps) (Kingma and Ba 2014, arXiv 1412.6980; constants: 1706.03762)."""

    class Config(Optimizer.Config):
        betas: Betas = Field(
            (0.9, 0.98), description="decay rates of the running means of gradients and squared gradients"
        )
        eps: PositiveFloat = Field(1e-9, description="added to the square root, to avoid division by zero")

    config: Config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        options = {"betas": self.config.betas, "eps": self.config.eps}
        return made(torch.optim.Adam, parameter_groups(model, decay_norms_and_biases=True), lr, options)


@register("optimizer", "adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay: x -= lr * weight_decay * x (Loshchilov and Hutter 2017, arXiv 1711.05101)."""

    class Config(Optimizer.Config):
        betas: Betas = Field(
            (0.9, 0.999), description="decay rates of the running means of gradients and squared gradients"
        )
        eps: PositiveFloat = Field(1e-8, description="added to the square root, to avoid division by zero")
        weight_decay: NonNegativeFloat = Field(
            0.01, description="fraction of a weight subtracted per step at learning rate 1"
        )
        decay_norms_and_biases: bool = Field(False, description="also decay norms, biases and other vectors")

    config: Config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Create AdamW. Norms and biases are decayed only if decay_norms_and_biases is set."""
        config = self.config
        options = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        return made(torch.optim.AdamW, parameter_groups(model, config.decay_norms_and_biases), lr, options)


class TwoOptimizers(torch.optim.Optimizer):
    """Muon and AdamW as a single optimizer. The key `by` of a group names the optimizer that updates it."""

    def __init__(self, parts: dict[str, torch.optim.Optimizer]) -> None:
        self.parts = parts
        groups = [{**group, "by": name} for name, part in parts.items() for group in part.param_groups]
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no optimizer here takes a closure
        for name, part in self.parts.items():
            part.param_groups = [group for group in self.param_groups if group["by"] == name]
            part.state = self.state
            part.step()


@register("optimizer", "muon")
class Muon(Optimizer):
    """x -= lr * 0.2 sqrt(max(rows, columns)) * orthogonal(momentum) for hidden matrices, AdamW for other parameters.

    The factor makes AdamW's learning rate suitable for both (Liu et al. 2025, arXiv 2502.16982). AdamW updates
    embeddings, heads, norms, biases and banks of experts (Jordan et al. 2024, kellerjordan.github.io/posts/muon).
    """

    class Config(Optimizer.Config):
        momentum: Beta = Field(0.95, description="decay rate of the running mean of gradients")
        nesterov: bool = Field(True, description="use Nesterov momentum")
        iterations: Annotated[int, Field(ge=1, lt=100)] = Field(
            5, description="Newton-Schulz iterations to orthogonalize an update"
        )
        weight_decay: NonNegativeFloat = Field(
            0.1,
            description="fraction of a matrix subtracted per step at learning rate 1; norms and biases are not decayed",
        )
        adamw: Names = Field((), description="names of hidden matrices to update with AdamW; * matches anything")
        betas: Betas = Field((0.9, 0.95), description="AdamW's betas")
        eps: PositiveFloat = Field(1e-8, description="AdamW's eps")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            if self.adamw and facts.blueprint is not None:
                matrices = hidden_matrices(skeleton(facts.blueprint))
                for pattern in self.adamw:
                    if not any(one.named([pattern]) for one in matrices):
                        yield Problem("adamw", f"no hidden matrix matches {pattern}")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: dict[str, Any] = {
            "momentum": config.momentum,
            "nesterov": config.nesterov,
            "ns_steps": config.iterations,
            "adjust_lr_fn": "match_rms_adamw",
        }
        self.adamw = {"betas": config.betas, "eps": config.eps}
        self.weight_decay = config.weight_decay
        self.left = config.adamw

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Create the combined optimizer. Raise UsageError if no hidden matrix is trained."""
        matrices = {id(one.value) for one in hidden_matrices(model) if not one.named(self.left)}
        orthogonal: list[Group] = []
        others: list[Group] = []
        for group in parameter_groups(model, decay_norms_and_biases=False):
            decay = group.get("weight_decay", self.weight_decay)
            for part, is_matrix in ((orthogonal, True), (others, False)):
                chosen = [one for one in group["params"] if (id(one) in matrices) == is_matrix]
                part.extend([{"params": chosen, "weight_decay": decay}] if chosen else [])
        if not orthogonal:
            raise UsageError("muon: no hidden matrix is trained; use adamw")
        parts: dict[str, torch.optim.Optimizer] = {"muon": torch.optim.Muon(orthogonal, lr=lr, **self.options)}
        if others:
            parts["adamw"] = made(torch.optim.AdamW, others, lr, self.adamw)
        return TwoOptimizers(parts)


REFUSED = {
    "LBFGS": "it evaluates the loss several times per step, which the training loop does not support",
    "SparseAdam": "it requires sparse gradients, which no part of tfkit produces",
    "Muon": "it accepts only matrices; `type: muon` uses AdamW for other parameters",
}


def usable() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the classes of torch.optim that the training loop supports, by name."""
    found = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    bases = (torch.optim.Optimizer,)
    return {
        name: kind
        for name, kind in found.items()
        if issubclass(kind, bases) and kind not in bases and name not in REFUSED
    }


@register("optimizer", "torch")
class Torch(Optimizer):
    """Any PyTorch optimizer, by class name (docs.pytorch.org/docs/stable/optim.html)."""

    example: ClassVar = {"name": "SGD"}

    class Config(Optimizer.Config):
        name: str = Field(description="class in torch.optim, such as SGD")
        options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments, except lr")
        decay_norms_and_biases: bool = Field(False, description="also decay norms, biases and other vectors")

        @model_validator(mode="after")
        def _exists(self) -> Torch.Config:
            if self.name in REFUSED:
                raise ValueError(f"torch.optim.{self.name} cannot be used: {REFUSED[self.name]}")
            kinds = usable()
            if self.name not in kinds:
                raise ValueError(_unknown("torch.optim has no optimizer", self.name, sorted(kinds)))
            _check_options(kinds[self.name], self.arguments())
            return self

        def arguments(self) -> dict[str, Any]:
            """Return the keyword arguments, with lists converted to tuples."""
            return {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}

    config: Config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Create the optimizer. Norms and biases are decayed only if decay_norms_and_biases is set."""
        kind = usable()[self.config.name]
        decay_all = self.config.decay_norms_and_biases or "weight_decay" not in inspect.signature(kind).parameters
        return made(kind, parameter_groups(model, decay_all), lr, self.config.arguments())


def _check_options(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """Raise ValueError for unknown options, and for values that the class rejects."""
    if "lr" in options:
        raise ValueError("options.lr: the learning rate is set by the schedule")
    known = [name for name in inspect.signature(kind).parameters if name not in ("self", "params", "lr")]
    for name in options:
        if name not in known:
            raise ValueError(_unknown(f"{kind.__name__} has no option", name, known))
    try:
        kind([nn.Parameter(torch.zeros(2, 2))], lr=1e-3, **options)  # type: ignore[call-arg]
    except Exception as error:  # each class raises its own exceptions
        raise ValueError(f"{kind.__name__} rejects its options: {error}") from None


def _unknown(what: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"{what} '{name}'. " + (f"Did you mean '{hint}'?" if hint else f"Available: {', '.join(known)}")
