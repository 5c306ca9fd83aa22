"""Parameters selected by `train.freeze`, determined without values; patterns for parameter names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Problem
from tfkit.core.skeleton import skeleton
from tfkit.core.slots import ObjectiveFacts
from tfkit.core.synonyms import nearest

MOST_LAYERS = 200  # deeper models are only checked at the start of training


def freeze_problems(
    written: Sequence[str], blueprint: Blueprint, objective: ObjectiveFacts.Config | None
) -> Iterator[Problem]:
    """Yield problems of `train.freeze`; an objective may also train its own model."""
    if not written or sum(plan.num_layers for plan in blueprint.stacks()) > MOST_LAYERS:
        return
    parameters = dict(skeleton(blueprint).named_parameters(remove_duplicate=False))
    for place, pattern in enumerate(written):
        if not named(pattern, parameters):
            yield Problem("", *unknown(pattern, parameters), at=f"train.freeze[{place}]")
    if objective is not None and "own_model" in objective.part.capabilities:
        return
    frozen = {id(parameter) for pattern in written for parameter in named(pattern, parameters)}
    trained = [
        parameter for name, parameter in parameters.items() if not name.startswith(_idle_heads(blueprint, objective))
    ]
    if all(id(parameter) in frozen for parameter in trained if parameter.requires_grad):
        yield Problem("freeze", "there is nothing to train: every parameter is frozen", at="train")


def _idle_heads(blueprint: Blueprint, objective: ObjectiveFacts.Config | None) -> tuple[str, ...]:
    """Return the name prefixes of heads that the objective does not train."""
    if objective is None:
        return ()
    own = objective.trained_head()
    trained = {own, *objective.part.beside}
    idle = [f"heads.{name}." for name, _ in blueprint.heads if name not in trained]
    return (*idle, *(["head."] if own is not None else []))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if one of the patterns, with * as wildcard, matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def named(written: str, parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that a pattern matches; without * it is a prefix."""
    pattern = written if _is_pattern(written) else f"{written}*"
    return [parameter for name, parameter in parameters.items() if matches(name, [pattern])]


def unknown(written: str, names: Iterable[str]) -> tuple[str, str | None]:
    """Return the message about a pattern or prefix without match, and a suggestion."""
    found, firsts = meant(written.rstrip(".*"), names)
    there = "" if found else f"; the names begin with {', '.join(firsts)}"
    verb = "is like" if _is_pattern(written) else "begins with"
    return f"no parameter's name {verb} '{written}'{there}", found


def _is_pattern(written: str) -> bool:
    return any(letter in written for letter in "*?[")


def meant(beginning: str, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the most similar prefix of a name, and the first components of all names."""
    parts = [name.split(".") for name in names]
    beginnings = {".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}
    return nearest(beginning, sorted(beginnings)), list(dict.fromkeys(part[0] for part in parts))
