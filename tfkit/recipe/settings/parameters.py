"""Selection of parameters by name and kind for `train.freeze`, `train.groups` and `train.layer_decay`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import nn

from tfkit.core.blueprint import Blueprint, Parametrization, StackPlan, mismatch
from tfkit.core.component import Component, Problem
from tfkit.core.skeleton import skeleton
from tfkit.core.slots import InitFacts, ObjectiveFacts
from tfkit.core.synonyms import nearest
from tfkit.recipe.settings.sections import ParameterGroup, Train

MOST_LAYERS = 200  # in deeper models, names are checked only when training starts


def freeze_problems(
    written: Sequence[str], blueprint: Blueprint, objective: ObjectiveFacts.Config | None
) -> Iterator[Problem]:
    """Yield problems of `train.freeze`: patterns without a match, and nothing left to train."""
    if sum(plan.num_layers for plan in blueprint.stacks()) > MOST_LAYERS:
        return
    parameters = dict(skeleton(blueprint).named_parameters(remove_duplicate=False))
    for place, pattern in enumerate(written):
        if not named(pattern, parameters):
            yield Problem("", *unknown(pattern, parameters), at=f"train.freeze[{place}]")
    if objective is not None and "own_model" in objective.part.capabilities:
        return
    frozen = {id(parameter) for pattern in written for parameter in named(pattern, parameters)}
    unused: list[str] = []  # prefixes of heads that the objective does not train
    if objective is not None:
        own = objective.trained_head()
        unused = [f"heads.{name}." for name, _ in blueprint.heads if name not in {own, *objective.part.beside}]
        unused += ["head."] if own is not None else []
    trained = [parameter for name, parameter in parameters.items() if not name.startswith(tuple(unused))]
    if all(id(parameter) in frozen for parameter in trained if parameter.requires_grad):
        yield Problem("freeze", "nothing to train: every parameter is frozen", at="train")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if one of the patterns, with * as wildcard, matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def named(written: str, parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters whose names match a pattern, or have it as prefix if it has no wildcard."""
    pattern = written if _is_pattern(written) else f"{written}*"
    return [parameter for name, parameter in parameters.items() if matches(name, [pattern])]


def unknown(written: str, names: Iterable[str]) -> tuple[str, str | None]:
    """Return the message for a pattern or prefix that matches no name, and a suggestion."""
    suggestion, firsts = meant(written.rstrip(".*"), names)
    hint = "" if suggestion else f"; names start with {', '.join(firsts)}"
    verb = "matches" if _is_pattern(written) else "starts with"
    return f"no parameter name {verb} '{written}'{hint}", suggestion


def _is_pattern(written: str) -> bool:
    return any(letter in written for letter in "*?[")


def meant(beginning: str, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the dotted prefix of a name most similar to `beginning`, and the first components of all names."""
    parts = [name.split(".") for name in names]
    beginnings = {".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}
    return nearest(beginning, sorted(beginnings)), list(dict.fromkeys(part[0] for part in parts))


LAYER = re.compile(r"(encoder|decoder)\.(?:layers\.(\d+)\.|(embedding|position)\.)")
ADAM = ("adam", "adamw", "nadam", "radam", "adamax")  # optimizers for which muP defines rates
TRAINED = "model."  # prefix of the model's parameters if the objective also trains modules of its own
OUTER = ("embedding", "position", "head")  # slots whose matrices do not count as hidden


@dataclass(frozen=True)
class Parameter:
    """A model parameter: its names (several if tied), and the slot of the innermost part that contains it."""

    names: tuple[str, ...]
    slot: str
    value: nn.Parameter

    def is_in(self, group: ParameterGroup) -> bool:
        if group.names and not self.named(group.names):
            return False
        match group.kind:
            case None:
                return True
            case "bias":
                return self.names[0].rpartition(".")[2] == "bias"
            case "matrix":
                return self.value.dim() >= 2 and self.slot not in OUTER
            case "vector":
                return self.value.dim() < 2
        return self.slot == group.kind

    def named(self, patterns: Sequence[str]) -> bool:
        return any(matches(name.removeprefix(TRAINED), patterns) for name in self.names)


def parameters_of(model: nn.Module) -> list[Parameter]:
    """Return the parameters of a model; a tied one is listed once, with the slot of the first part that contains it."""
    slots: dict[int, str] = {}
    values: dict[int, nn.Parameter] = {}
    names: dict[int, list[str]] = {}

    def visit(module: nn.Module, prefix: str, slot: str) -> None:
        if isinstance(module, Component):
            slot = module.part_slot
        for name, value in module._parameters.items():
            if value is not None:
                names.setdefault(id(value), []).append(prefix + name)
                slots.setdefault(id(value), slot)
                values[id(value)] = value
        for name, child in module.named_children():
            visit(child, f"{prefix}{name}.", slot)

    visit(model, "", "")
    return [Parameter(tuple(paths), slots[key], values[key]) for key, paths in names.items()]


def hidden_matrices(model: nn.Module) -> list[Parameter]:
    """Return the 2-d parameters outside embeddings, positions and heads, which excludes expert banks (3-d)."""
    return [one for one in parameters_of(model) if one.value.dim() == 2 and one.slot not in OUTER]


def rate_of(
    parameter: Parameter, groups: Sequence[ParameterGroup], layer_decay: float | None, depths: Mapping[str, int]
) -> float:
    """Return the parameter's learning rate factor: the product of its groups' rates and the decay of its layer.

    The decay is layer_decay ** (number of layers above + 1). Embeddings count as one layer below the first; norms and
    heads after the last layer are not decayed (Howard and Ruder 2018, arXiv 1801.06146; Clark et al. 2020, arXiv
    2003.10555).
    """
    rate = 1.0
    for group in groups:
        rate *= group.rate if parameter.is_in(group) else 1.0
    match = LAYER.match(parameter.names[0])
    if layer_decay is not None and match is not None:
        layer = -1 if match[2] is None else int(match[2])
        rate *= layer_decay ** (depths[match[1]] - layer)
    return rate


def decay_of(parameter: Parameter, groups: Sequence[ParameterGroup]) -> float | None:
    """Return the weight decay from the last group that selects the parameter and sets one, or None."""
    decays = [group.weight_decay for group in groups if group.weight_decay is not None and parameter.is_in(group)]
    return decays[-1] if decays else None


def depths_of(blueprint: Blueprint) -> dict[str, int]:
    """Return the number of layers of each stack."""
    return {plan.side: plan.num_layers for plan in blueprint.stacks()}


def parametrization_problems(train: Train, blueprint: Blueprint, chosen: Parametrization) -> Iterator[Problem]:
    """Yield problems with muP: an unsuitable optimizer or init, or a base model of a different structure."""
    options = dict(train.optimizer)
    name = str(options.get("name", train.optimizer.part.part_name))
    if name.lower() not in ADAM:
        text = f"model.parametrization defines learning rates for Adam, not for {name}; use adam or adamw"
        yield Problem("", text, at="train.optimizer")
    init = blueprint.init.part
    if issubclass(init, InitFacts) and (fault := init.without_std()):
        yield Problem("init", fault, at="model")
    models = [skeleton(_first_layers(model)) for model in (blueprint, chosen.base)]
    own, base = ({name: weight.shape for name, weight in model.named_parameters()} for model in models)
    if (other := mismatch(own, base)) is not None:
        yield Problem("base", other, at="model.parametrization")


def _first_layers(blueprint: Blueprint) -> Blueprint:
    """Truncate each stack to the shortest prefix that contains all its distinct layers."""

    def short(plan: StackPlan | None) -> StackPlan | None:
        if plan is None:
            return None
        count = 1 + max(plan.order.index(kind) for kind in set(plan.order))
        return replace(plan, order=plan.order[:count], entries=plan.entries[:count])

    return replace(blueprint, encoder=short(blueprint.encoder), decoder=short(blueprint.decoder))


def group_problems(train: Train, blueprint: Blueprint) -> Iterator[Problem]:
    """Yield a problem for each group that selects no parameter."""
    if sum(depths_of(blueprint).values()) > MOST_LAYERS:
        return
    parameters = parameters_of(skeleton(blueprint))
    for place, group in enumerate(train.groups):
        if not any(parameter.is_in(group) for parameter in parameters):
            what = [f"a name matching {', '.join(group.names)}"] if group.names else []
            what += [f"kind {group.kind}"] if group.kind else []
            kinds = ", ".join(dict.fromkeys(parameter.slot for parameter in parameters))
            text = f"no parameter has {' and '.join(what)}; names look like {parameters[0].names[0]}"
            yield Problem("", f"{text}, and the slots are {kinds}", at=f"train.groups[{place}]")
