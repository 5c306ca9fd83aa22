"""Differences between recipes: layers are aligned, architectures compared as Blueprints, other sections by value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from pydantic import BaseModel

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Config
from tfkit.recipe.architecture.stack import LAST_STATE
from tfkit.recipe.keys import STACK
from tfkit.recipe.load import Recipe
from tfkit.recipe.text.node import inline
from tfkit.recipe.views.resolved import layer_columns
from tfkit.recipe.views.row import Runs, joined, label, places


class Pair(NamedTuple):
    """A run of consecutive aligned layers: their plans, and the first and last index in each stack."""

    before: LayerPlan
    after: LayerPlan
    here: tuple[int, int]
    there: tuple[int, int]


class Alignment(NamedTuple):
    """The layers of two stacks: aligned pairs, and layers without a counterpart."""

    pairs: list[Pair]
    only_before: list[tuple[LayerPlan, Runs]]
    only_after: list[tuple[LayerPlan, Runs]]


def align(before: StackPlan, after: StackPlan) -> Alignment:
    """Align two stacks, by index if they are equally deep.

    Otherwise match layers of equal structure from both ends, and the layers in between by index; excess layers of the
    deeper stack stay unmatched.
    """
    first, second = before.num_layers, after.num_layers
    shorter, end = min(first, second), 0
    if first != second:
        kinds: list[object] = []
        here, there = _outlines(before, kinds), _outlines(after, kinds)
        start = _equal(here, there)
        end = min(_equal(here[::-1], there[::-1]), shorter - start)
    start = shorter - end  # pair the remaining layers by index
    pairs = [*_pairs(before, after, 0, 0, start), *_pairs(before, after, first - end, second - end, end)]
    return Alignment(pairs, _left(before, start, first - end), _left(after, start, second - end))


def _outlines(plan: StackPlan, kinds: list[object]) -> list[int]:
    """Return an index into `kinds` for each layer, ignoring options."""
    numbers = []
    for layer in plan.layers:
        parts = [(sublayer.name, sublayer.config.part) for sublayer in layer.sublayers]
        outline = layer.residual.part, parts, layer.mask, layer.position
        if outline not in kinds:
            kinds.append(outline)
        numbers.append(kinds.index(outline))
    return [numbers[kind] for kind in plan.order]


def _equal(first: Sequence[int], second: Sequence[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


def _pairs(before: StackPlan, after: StackPlan, here: int, there: int, count: int) -> Iterator[Pair]:
    """Pair `count` layers, starting at index `here` in one stack and at `there` in the other."""
    kinds = zip(before.order[here : here + count], after.order[there : there + count], strict=True)
    for (one, other), same in groupby(kinds):
        length = len(list(same))
        yield Pair(before.layers[one], after.layers[other], (here, here + length - 1), (there, there + length - 1))
        here, there = here + length, there + length


def _left(plan: StackPlan, first: int, after: int) -> list[tuple[LayerPlan, Runs]]:
    """Group the layers with the same plan among the indices in [first, after)."""
    found = places(plan.order[first:after]).items()
    return [(plan.layers[kind], [(first + one, first + last) for one, last in runs]) for kind, runs in found]


class Change(NamedTuple):
    """A difference: its key, both values, and the layers or stacks that it affects, unless it affects all."""

    what: str
    before: str
    after: str
    where: str = ""


def differences(
    what: str, before: object, after: object, follows: Sequence[tuple[object, object]] = (), absent: str = "none"
) -> Iterator[Change]:
    """Yield the differences between `before` and `after` at the key `what`.

    Pairs in `follows` are skipped, because they are reported elsewhere; `absent` is the text for a value of None.
    """
    if before == after or any(pair == (before, after) for pair in follows):
        return
    if isinstance(before, BaseModel) and type(before) is type(after):
        for name in type(before).model_fields:
            yield from differences(f"{what}.{name}", getattr(before, name), getattr(after, name), follows)
    elif isinstance(before, tuple) and isinstance(after, tuple) and _holds_parts((*before, *after)):
        yield from _lists(what, before, after)
    else:
        yield Change(what, *(absent if value is None else words(value) for value in (before, after)))


def _holds_parts(values: Sequence[object]) -> bool:
    return all(isinstance(value, BaseModel) for value in values)


def _lists(what: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[Change]:
    """Compare two lists of parts by their members, or by order if the members are equal."""
    lost = tuple(part for part in before if part not in after)
    new = tuple(part for part in after if part not in before)
    if len(lost) == len(new) == 1 and type(lost[0]) is type(new[0]):
        alone = len(before) == len(after) == 1
        yield from differences(what if alone else f"{what}.{words_of_type(new[0])}", lost[0], new[0])
    else:
        pair = (lost, new) if lost or new else (before, after)
        yield Change(what, *map(words, pair))


def words_of_type(part: BaseModel) -> str:
    """Return the name of a part, or an empty string for a section."""
    return part.part.part_name if isinstance(part, Config) else ""


def words(value: object) -> str:
    """Format a value: `rotary (theta 10000, layout halves)`, `window (size 512), causal`, `none`.

    Options whose default is empty (`none`, `false`, 0, []) are omitted if unset.
    """
    if isinstance(value, BaseModel):
        options = [
            f"{name} {words(option)}"
            for name, field in type(value).model_fields.items()
            if (option := getattr(value, name)) or field.is_required() or option != field.get_default()
        ]
        return f"{words_of_type(value)} ({', '.join(options)})".strip() if options else words_of_type(value) or "{}"
    if isinstance(value, tuple | list) and _holds_parts(value):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, float):
        return inline(value).removesuffix(".0")
    return inline(dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value)


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
