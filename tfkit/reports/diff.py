"""Differences between recipes: architectures are compared as Blueprints, other sections by value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.recipe.architecture.stack import LAST_STATE
from tfkit.recipe.keys import STACK
from tfkit.recipe.load import Recipe
from tfkit.recipe.views.resolved import layer_columns
from tfkit.recipe.views.runs import Runs, joined, label, places
from tfkit.reports.align import Alignment, align
from tfkit.reports.difference import Change, differences, words

Follows = list[tuple[Any, Any]]  # changes of the layers' norm, which other norms inherit
AS_LAYER = "layer.norm"
OUTPUT = "the encoder's output"
SHOWN_SETS = 8


def diff_architectures(before: Blueprint, after: Blueprint) -> list[Change]:
    """List the differences; the list is empty if and only if the Blueprints are equal."""
    if before == after:
        return []
    follows: Follows = []
    stacks = list(_stacks(before, after, follows))
    changes = [*differences("type", before.type, after.type), *stacks]
    changes += differences("head", before.head, after.head, follows)
    changes += _named("heads", dict(before.heads), dict(after.heads), follows)
    changes += differences("init", before.init, after.init)
    old, new = (one.parametrization and one.parametrization.as_data() for one in (before, after))
    changes += differences("parametrization", old, new)
    changes += _named("special_ids", dict(before.special_ids), dict(after.special_ids), follows)
    return changes


def diff_settings(before: Recipe, after: Recipe) -> list[Change]:
    """Compare the sections other than `model:` by value."""
    changes: list[Change] = []
    for name in ("data", "objective", "train", "generate"):
        changes += differences(name, getattr(before, name), getattr(after, name))
    return changes + list(differences("imports", before.sections().get("imports"), after.sections().get("imports")))


def _named(what: str, before: dict[str, object], after: dict[str, object], follows: Follows) -> Iterator[Change]:
    """Compare two mappings by key, and the order of their keys."""
    for name in dict.fromkeys([*before, *after]):
        yield from differences(f"{what}.{name}", before.get(name), after.get(name), follows)
    yield from _order(what, list(before), list(after))


def _order(what: str, before: list[str], after: list[str]) -> Iterator[Change]:
    """Compare the order of the names that occur in both."""
    old, new = ([name for name in one if name in other] for one, other in ((before, after), (after, before)))
    if old != new:
        yield Change(f"order of {what}", ", ".join(old), ", ".join(new))


# stacks


def _stacks(before: Blueprint, after: Blueprint, follows: Follows) -> Iterator[Change]:
    """Compare all stacks; a change that applies to both encoder and decoder is listed once."""
    old, new = ({plan.side: plan for plan in blueprint.stacks()} for blueprint in (before, after))
    if len(old) == len(new) == 1:
        yield from _stack(before.last, after.last, follows, alone=True)
        return
    by_side = {}
    for side in dict.fromkeys([*old, *new]):
        one, other = old.get(side), new.get(side)
        if one is None or other is None:
            yield Change(side, *("none" if plan is None else _stack_words(plan) for plan in (one, other)))
        else:
            by_side[side] = list(_stack(one, other, follows, alone=False))
    for change in dict.fromkeys(change for changes in by_side.values() for change in changes):
        sides = [side for side, changes in by_side.items() if change in changes]
        where = [] if len(sides) == 2 else [sides[0]]
        yield change._replace(where=" ".join([*where, *([change.where] if change.where else [])]))


def _stack(before: StackPlan, after: StackPlan, follows: Follows, alone: bool) -> Iterator[Change]:
    """Yield all changes of a stack in recipe order; changes of the layers' norm are appended to `follows`."""
    layers = list(_layers(align(before, after), follows))
    for name in STACK:
        if name == "layer":
            yield from layers
        elif name == "memory" and alone:  # if there is an encoder, the memory is its output
            yield from differences("memory.d_model", before.memory_width, after.memory_width, follows)
        elif name == "memory" and after.side == "decoder" and before.last_state != after.last_state:
            yield Change("memory", *(LAST_STATE if plan.last_state else OUTPUT for plan in (before, after)))
        elif name == "pattern" and not any(change.what.endswith("shared") for change in layers):
            if before.num_layers == after.num_layers and before.entries != after.entries:
                yield Change("layers that share weights", _sets(before), _sets(after))
        elif name not in ("mask", "memory", "layers", "pattern"):  # these are compared layer by layer
            yield from differences(name, getattr(before, name), getattr(after, name), follows)


def _layers(alignment: Alignment, follows: Follows) -> Iterator[Change]:
    """Yield the changes between aligned layers, equal ones grouped, then the layers without a counterpart."""
    found: dict[Change, tuple[Runs, Runs]] = {}
    for pair in alignment.pairs:
        if pair.before.norm != pair.after.norm:
            follows.append((pair.before.norm, pair.after.norm))
        for change in _layer(pair.before, pair.after):
            here, there = found.setdefault(change, ([], []))
            here.append(pair.here)
            there.append(pair.there)
    every = joined(pair.here for pair in alignment.pairs)
    for change, (here, there) in found.items():
        here, there = joined(here), joined(there)
        moved = "" if here == there else f" ({label(there)} of the other)"
        yield change._replace(where="" if here == every else label(here) + moved)
    for plan, runs in alignment.only_before:
        yield Change(label(runs), _alone(plan, [(pair.before, pair.here[0]) for pair in alignment.pairs]), "none")
    for plan, runs in alignment.only_after:
        yield Change(label(runs), "none", _alone(plan, [(pair.after, pair.there[0]) for pair in alignment.pairs]))


def _sets(plan: StackPlan) -> str:
    found = [label(runs) for entry, runs in places(plan.entries).items() if entry >= 0]
    more = f"; ... ({len(found):,} sets)" if len(found) > SHOWN_SETS else ""
    return "; ".join(found[:SHOWN_SETS]) + more or "none"


# layers


def _layer(before: LayerPlan, after: LayerPlan) -> Iterator[Change]:
    columns = old, new = _columns(before), _columns(after)
    order = [columns.pop("sublayers") for columns in (old, new)]
    for name in dict.fromkeys([*old, *new]):
        if name.endswith("_norm") and not (name in old and name in new):
            continue  # only one of the two layers has this sublayer
        absent = "the stack's" if name == "position" else "none"
        yield from differences(f"layer.{name}", old.get(name), new.get(name), _base(name, columns), absent)
    yield from _order("sublayers", *order)


def _columns(plan: LayerPlan) -> dict[str, Any]:
    """Return the values of a layer by key; norms equal to the layer's norm become AS_LAYER."""
    norms = {f"{sublayer.name}_norm": AS_LAYER for sublayer in plan.sublayers if sublayer.norm == plan.norm}
    return layer_columns(plan) | norms | {"sublayers": [sublayer.name for sublayer in plan.sublayers]}


def _base(name: str, columns: Sequence[Mapping[str, object]]) -> Follows:
    """Return both values of the key that `name` inherits from: attention, or feedforward for feedforward_2."""
    base = "attention" if name == "cross_attention" else re.sub(r"_\d+$", "", name)
    found = [one[base] for one in columns if base in one]
    return [(found[0], found[1])] if base != name and len(found) == 2 else []


def _alone(plan: LayerPlan, aligned: Sequence[tuple[LayerPlan, int]]) -> str:
    """Describe a layer without a counterpart, as "as layer N" if an aligned layer equals it."""
    like = next((first for other, first in aligned if other == plan), None)
    return _layer_words(plan) if like is None else f"as layer {like}"


def _layer_words(plan: LayerPlan) -> str:
    parts = [f"{sublayer.name} {words(sublayer.config)}" for sublayer in plan.sublayers]
    parts += [f"mask {words(plan.mask)}"] * bool(plan.mask) + [f"norm {words(plan.norm)}"] * (plan.norm is not None)
    parts += [f"position {words(plan.position)}"] * (plan.position is not None)
    parts += [f"dropout {words(plan.dropout)}"] * bool(plan.dropout) + ["shared"] * plan.shared
    return f"{words(plan.residual)}: {', '.join(parts)}"


def _stack_words(plan: StackPlan) -> str:
    layers = "; ".join(f"{label(runs)} {_layer_words(plan.layers[kind])}" for kind, runs in places(plan.order).items())
    ends: Sequence[tuple[str, object]] = (("embedding", plan.embedding), ("position", plan.position))
    parts = [f"{name} {words(part)}" for name, part in ends if part]
    return f"d_model {plan.d_model}, " + "; ".join([*parts, layers])
