"""Formatting of a Blueprint as a recipe, with every value explicit and its origin as a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tfkit.core.blueprint import Blueprint, LayerPlan, Parametrization, StackPlan
from tfkit.core.bounds import Tree
from tfkit.core.component import Config, spell, whole_numbers
from tfkit.core.keys import Key, PartsValue
from tfkit.recipe.architecture.context import explicit_masks
from tfkit.recipe.architecture.stack import LAST_STATE
from tfkit.recipe.keys import LAYER, STACK, SUBLAYERS
from tfkit.recipe.text.node import inline, quoted, shorten
from tfkit.recipe.views.row import Notes, RecipeRow, one_line

LEFT_OUT = object()  # sentinel: omit the key
Label = tuple[int, int]  # layer label: (plan index, negative entry), or (-1, pattern entry) if the layer shares weights
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([+*][A-Za-z0-9_]+)*")
WIDTH, SHORTEST = 114, 32  # maximum width of a line, minimum width left for the comment of a default
RESERVED = {"none", "null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def resolved_text(name: str, recipe: RecipeRow) -> str:
    """Return the text of resolved.yaml, which loads to an equal Blueprint."""
    title = f"# {one_line(name)}, every value explicit, with its origin."
    return "\n".join([title, *_lines(recipe, 0)]) + "\n"


def model_values(blueprint: Blueprint) -> Tree:
    """Return the `model:` section of a Blueprint, with parts as Configs."""
    stacks = {plan.side: stack_values(plan, blueprint) for plan in blueprint.stacks()}
    options = len(type(blueprint.type).model_fields)
    model: Tree = {"type": blueprint.type if options else blueprint.type.part.part_name}
    for side, stack in stacks.items():
        model |= {side: stack} if len(stacks) > 1 else stack
    model["head"] = blueprint.head
    if blueprint.heads:
        model["heads"] = dict(blueprint.heads)
    model["init"] = blueprint.init
    if blueprint.parametrization is not None:
        chosen = blueprint.parametrization
        model["parametrization"] = {**chosen.as_data(), "base": _base_sizes(chosen, blueprint, spell(model))}
    if blueprint.special_ids:
        model["special_ids"] = dict(blueprint.special_ids)
    return model


def _base_sizes(chosen: Parametrization, blueprint: Blueprint, model: Mapping[str, object]) -> dict[str, int]:
    """Return the sizes of the muP base by key of resolved.yaml: those that differ from the model, or are in `base`."""
    written = dict(chosen.written)
    small = dict(whole_numbers(spell(model_values(chosen.base))))
    own = dict(whole_numbers(model))
    sizes = {key: size for key, size in small.items() if own.get(key) != size or key in written}
    alone = len(list(blueprint.stacks())) == 1
    sizes |= {"num_layers" if alone else f"{side}.num_layers": layers for side, layers in chosen.depths}
    return sizes or {key: size for key, size in small.items() if key.rpartition(".")[2] == "d_model"}


def stack_values(plan: StackPlan, blueprint: Blueprint) -> dict[str, object]:
    """Return the keys of one stack with their values."""
    alone = len(list(blueprint.stacks())) == 1
    own = _layers(plan, causal_by_type(plan, blueprint))
    own["memory"] = {"d_model": plan.memory_width} if plan.memory_width is not None and alone else LEFT_OUT
    if plan.last_state and plan.side == "decoder":
        own["memory"] = LAST_STATE
    own["vocab_size"] = LEFT_OUT if plan.vocab_size is None else plan.vocab_size
    own["mask"] = LEFT_OUT  # set in each layer instead
    values = {name: own[name] if name in own else held(plan, key) for name, key in STACK.items()}
    return {name: value for name, value in values.items() if value is not LEFT_OUT}


def _layers(plan: StackPlan, causal: bool) -> Tree:
    """Return the keys that define the layers: `layer`, and `layers` and `pattern` if they differ."""
    layers = [layer_values(layer, causal) for layer in plan.layers]
    names = kind_names(plan)
    if names:
        kinds = {name: _kind([layers[kind] for kind in kinds]) for name, kinds in names.items()}
        return {"layer": {"norm": plan.layers[0].norm}, "layers": kinds, "pattern": _pattern(plan)}
    layer = layers[0]
    if plan.memory_width is not None and "cross_attention" not in layer:
        layer = layer | {"cross_attention": None}  # explicit, since the default is a copy of `attention` (R16)
    return {"layer": layer, "layers": LEFT_OUT, "pattern": LEFT_OUT}


def held(plan: StackPlan | LayerPlan, key: Key) -> Any:
    """Return the value of a key in a plan: a number, a flag, or parts."""
    value = getattr(plan, key.name)
    return one_or_many(value) if isinstance(key.kind, PartsValue) else value


def causal_by_type(plan: StackPlan, blueprint: Blueprint) -> bool:
    """True if the model's type makes this stack causal."""
    return bool(blueprint.type.part.sides[plan.side])


def layer_columns(plan: LayerPlan) -> dict[str, Any]:
    """Return all values of one layer by key, including the part and norm of each sublayer."""
    columns = {name: getattr(plan, name) for name, key in LAYER.items() if name == key.field}
    columns["sublayers"] = [re.sub(r"_\d+$", "", sublayer.name) for sublayer in plan.sublayers]
    for sublayer in plan.sublayers:
        columns |= {sublayer.name: sublayer.config, f"{sublayer.name}_norm": sublayer.norm}
    return columns


def layer_values(plan: LayerPlan, causal: bool, every: bool = False) -> dict[str, object]:
    """Return the keys of one layer in recipe notation; defaults are omitted unless `every` is true."""
    columns = layer_columns(plan)
    norms = {f"{sublayer.name}_norm" for sublayer in plan.sublayers if sublayer.norm == plan.norm}
    unset = {*norms, *(name for name in ("position", "shared") if columns[name] in (None, False))}
    columns["mask"] = one_or_many(explicit_masks(plan.mask, causal))
    columns["position"] = one_or_many(plan.position)
    if every:
        return dict.fromkeys(SUBLAYERS) | columns
    return {name: value for name, value in columns.items() if name not in unset}


def kind_names(plan: StackPlan) -> dict[str, list[int]]:
    """Map kind names to the plan indices of their layers; empty if all layers are equal.

    The layers of a pattern entry with shared weights form one kind. If `per_layer` made them differ, the kind uses
    `per_layer` as well.
    """
    if len(plan.layers) == 1 and len(set(plan.entries)) == 1:
        return {}
    return {_name(label, kinds): kinds for label, kinds in _kinds(plan).items()}


def _kinds(plan: StackPlan) -> dict[Label, list[int]]:
    """Map labels to the plan indices of their layers, in stack order."""
    kinds: dict[Label, list[int]] = {}
    for label, kind in zip(_labels(plan), plan.order, strict=True):
        kinds.setdefault(label, []).append(kind)
    return kinds


def _labels(plan: StackPlan) -> list[Label]:
    return [(kind if entry < 0 else -1, entry) for kind, entry in zip(plan.order, plan.entries, strict=True)]


def _name(label: Label, kinds: Sequence[int]) -> str:
    return f"kind_{kinds[0]}" if len(set(kinds)) == 1 else f"entry_{label[1]}"


def _kind(layers: Sequence[object]) -> object:
    """Return the value of a kind, with `per_layer` where its layers differ."""
    alike = all(layer is layers[0] for layer in layers)
    return layers[0] if alike else _per_layer([spell(layer) for layer in layers])


def _pattern(plan: StackPlan) -> Sequence[str | list[str]]:
    """Return the pattern of kinds; entries that repeat form an inner list."""
    labels, names = _labels(plan), {label: _name(label, kinds) for label, kinds in _kinds(plan).items()}
    before, cycle, after = (
        [f"{names[label]}*{len(list(group))}" for label, group in groupby(part)] for part in _folded(labels)
    )
    return [*before, cycle, *after] if cycle and (before or after) else before or cycle


def _folded(labels: Sequence[Label]) -> tuple[Sequence[Label], Sequence[Label], Sequence[Label]]:
    """Split labels into prefix, cycle and suffix. A shared entry that occurs again restarts the cycle."""
    starts: dict[object, int] = {}
    for index, label in enumerate(labels):
        if index and label == labels[index - 1]:
            continue
        if label[1] >= 0 and label in starts:
            break
        starts.setdefault(label, index)
    else:
        return labels, (), ()
    start = starts[label]
    cycle = labels[start:index]
    end = index
    while end < len(labels) and labels[end] == cycle[(end - start) % len(cycle)]:
        end += 1
    return labels[:start], cycle, labels[end:]


def _per_layer(texts: Sequence[Any]) -> object:
    """Merge the values of several layers, with `per_layer` where they differ."""
    first = texts[0]
    if all(text == first for text in texts):
        return first
    if all(isinstance(text, Mapping) and text.keys() == first.keys() for text in texts):
        return {key: _per_layer([text[key] for text in texts]) for key in first}
    if all(isinstance(text, list) and len(text) == len(first) for text in texts):
        return [_per_layer(list(values)) for values in zip(*texts, strict=True)]
    return {"per_layer": list(texts)}


def one_or_many(parts: Sequence[Config] | None) -> object:
    """Return parts in recipe notation: none, one, or a list."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else list(parts)


def _lines(value: RecipeRow, depth: int) -> Iterator[str]:
    """Format a mapping in block style, each value with its origin as a comment; long defaults are truncated."""
    indent = "  " * depth
    for child in value.children():
        key, plain = child.path.removeprefix(f"{value.path}."), child.plain()
        if isinstance(plain, Mapping) and plain:
            yield f"{indent}{key}:"
            yield from _lines(child, depth + 1)
        else:
            text, comment = f"{indent}{key}: {scalar(plain)}", child.origin.short()
            if child.origin.place is None:
                comment = shorten(comment, max(WIDTH - len(text), SHORTEST))
            yield f"{text}  # {comment}"


def scalar(value: Any) -> str:
    """Format a value in flow style."""
    if value is None or isinstance(value, bool):
        return inline(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) is not None and value.lower() not in RESERVED
        return value if plain else quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(child)}" for key, child in value.items()) + "}"
    return "[" + ", ".join(scalar(child) for child in value) + "]"


def notes(file: str, text: str) -> Notes:
    """Return the trailing comments of a resolved.yaml, keyed by file and line number."""
    lines = [line.rpartition("  # ") for line in text.splitlines()]
    return {(file, number): comment for number, (value, _, comment) in enumerate(lines, start=1) if value.strip()}
