"""What `train.init_from` and `train.teacher` ask of this model and its objective, before the other run is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Problem
from tfkit.core.options import layer_pairs
from tfkit.recipe.settings.sections import Train


def initial_problems(train: Train, blueprint: Blueprint) -> Iterator[Problem]:
    """Report layers of `train.init_from` that the model lacks."""
    if train.initial is not None:
        yield from _layer_problems(train.initial.layers, "train.init_from.layers", blueprint)


def _layer_problems(layers: Mapping[str, Any], at: str, blueprint: Blueprint) -> Iterator[Problem]:
    """Report pairs whose first layer the model lacks."""
    plans = {plan.side: plan for plan in blueprint.stacks()}
    for pair in layer_pairs(layers, blueprint.last.side):
        if pair.side not in plans:
            yield Problem("", f"the model has no {pair.side}; its stack is the {blueprint.last.side}", at=at + pair.at)
        elif len(plans) > 1 and pair.at.count(".") == 1:
            text = f"the model has two stacks; say which: {{{pair.side}: {{{pair.own}: {pair.other}}}}}"
            yield Problem("", text, at=at + pair.at)
        elif pair.own >= plans[pair.side].num_layers:
            count = plans[pair.side].num_layers
            text = f"there is no layer {pair.own}: the {pair.side} has layers 0 to {count - 1}"
            yield Problem("", text, at=at + pair.at)
