"""Requirements of `train.init_from` and `train.teacher` on the model and objective, checked before reading the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config, Problem
from tfkit.core.options import layer_pairs
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import ObjectiveFacts
from tfkit.recipe.settings.sections import Teacher, Train


def initial_problems(train: Train, blueprint: Blueprint) -> Iterator[Problem]:
    """Report layers of `train.init_from` that the model lacks."""
    if train.initial is not None:
        yield from _layer_problems(train.initial.layers, "train.init_from.layers", blueprint)


def teacher_problems(train: Train, blueprint: Blueprint, objective: ObjectiveFacts.Config | None) -> Iterator[Problem]:
    """Report settings of `train.teacher` that the model or objective does not support."""
    teacher, at = train.teacher, "train.teacher"
    if teacher is None:
        return
    yield from _layer_problems(teacher.hidden, f"{at}.hidden", blueprint)
    yield from _layer_problems(teacher.attention, f"{at}.attention", blueprint)
    yield from _attention_problems(teacher, blueprint)
    if not teacher.is_read and teacher.sequences is None:
        yield Problem("weight", "the teacher teaches nothing; say a weight above 0, or teacher: none", at=at)
    if teacher.is_read and objective is not None and "soft_targets" not in objective.part.capabilities:
        able = [name for name, part in REGISTRY.load("objective").items() if "soft_targets" in part.capabilities]
        text = f"'{objective.part.part_name}' cannot learn from a teacher; objectives that can: {', '.join(able)}"
        yield Problem("", text, at=at)
    if teacher.sequences is not None:
        yield from _sequence_problems(teacher.sequences, objective)


def _sequence_problems(strategy: Config, objective: ObjectiveFacts.Config | None) -> Iterator[Problem]:
    """Report objectives without targets to rewrite, and sampling strategies."""
    at = "train.teacher.sequences"
    if objective is not None and "continuations" not in objective.part.capabilities:
        text = f"'{objective.part.part_name}' has no targets that a teacher could write; seq2seq and completion have"
        yield Problem("", text, at=at)
    if "draws" in strategy.part.able(strategy):
        text = f"'{strategy.part.part_name}' draws at random, and targets are written once; say beam or greedy"
        yield Problem("", text, at=at)


def _attention_problems(teacher: Teacher, blueprint: Blueprint) -> Iterator[Problem]:
    """Report layers of the student without attention weights."""
    plans = {plan.side: plan for plan in blueprint.stacks()}
    for pair in layer_pairs(teacher.attention, blueprint.last.side):
        plan = plans.get(pair.side)
        if plan is not None and pair.own < plan.num_layers and not shows_attention(plan, pair.own):
            text = f"layer {pair.own} of the {pair.side} has no attention that hands out its weights"
            yield Problem("", f"{text}; leave it out", at=f"train.teacher.attention{pair.at}")


def shows_attention(plan: StackPlan, layer: int) -> bool:
    """True if the layer has a self-attention that exposes its weights."""
    sublayers = plan.layers[plan.order[layer]].sublayers
    return any(one.name == "attention" and "weights" in one.config.part.capabilities for one in sublayers)


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
