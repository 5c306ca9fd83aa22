"""The parameters that `train.freeze` names: which beginnings of names there are, found without a number of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Problem
from tfkit.core.registry import nearest
from tfkit.core.skeleton import skeleton
from tfkit.core.slots import ObjectiveFacts

MOST_LAYERS = 200  # a deeper model is built, on meta, when it is trained


def freeze_problems(
    beginnings: Sequence[str], blueprint: Blueprint, objective: ObjectiveFacts.Config | None
) -> Iterator[Problem]:
    """What is wrong with `train.freeze`; an objective may train a model of its own too."""
    if not beginnings or sum(plan.num_layers for plan in blueprint.stacks()) > MOST_LAYERS:
        return
    parameters = dict(skeleton(blueprint).named_parameters(remove_duplicate=False))
    for place, beginning in enumerate(beginnings):
        if not named(beginning, parameters):
            yield Problem("", *unknown(beginning, parameters), at=f"train.freeze[{place}]")
    if objective is not None and "own_model" in objective.part.capabilities:
        return
    frozen = {id(parameter) for beginning in beginnings for parameter in named(beginning, parameters)}
    trained = [
        parameter for name, parameter in parameters.items() if not name.startswith(_idle_heads(blueprint, objective))
    ]
    if all(id(parameter) in frozen for parameter in trained if parameter.requires_grad):
        yield Problem("freeze", "there is nothing to train: every parameter is frozen", at="train")


def _idle_heads(blueprint: Blueprint, objective: ObjectiveFacts.Config | None) -> tuple[str, ...]:
    """The beginnings of the names of heads that the objective does not train."""
    if objective is None:
        return ()
    own = objective.trained_head()
    trained = {own, *objective.part.beside}
    idle = [f"heads.{name}." for name, _ in blueprint.heads if name not in trained]
    return (*idle, *(["head."] if own is not None else []))


def named(beginning: str, parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """The parameters whose name begins so."""
    return [parameter for name, parameter in parameters.items() if name.startswith(beginning)]


def unknown(beginning: str, names: Iterable[str]) -> tuple[str, str | None]:
    """The message about a beginning that no name has, and the one that was probably meant."""
    found, firsts = meant(beginning, names)
    there = "" if found else f"; the names begin with {', '.join(firsts)}"
    return f"no parameter's name begins with '{beginning}'{there}", found


def meant(beginning: str, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """The beginning of a name that was probably meant; and what all names begin with."""
    parts = [name.split(".") for name in names]
    beginnings = {".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}
    return nearest(beginning, sorted(beginnings)), list(dict.fromkeys(part[0] for part in parts))
