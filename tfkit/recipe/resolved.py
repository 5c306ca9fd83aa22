"""The recipe that a Blueprint is: every value spelled out, in the recipe language, with its origin as a comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Config, spell
from tfkit.recipe.node import Node

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([+*][A-Za-z0-9_]+)*")
RESERVED = {"none", "null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def resolved_text(name: str, blueprint: Blueprint, sections: Mapping[str, Any], written: Node) -> str:
    """The text of `resolved.yaml`; loads to an equal Blueprint.

    `sections` are those besides `model:`, `written` is the text of the whole recipe, which values come from.
    """
    spelled = {"tfkit": 1, "model": spelled_model(blueprint)} | {key: spell(value) for key, value in sections.items()}
    title = f"# {name}, every value spelled out; after each stands where it comes from."
    return "\n".join([title, *_lines(spelled, written, 0)]) + "\n"


def spelled_model(blueprint: Blueprint) -> dict[str, Any]:
    """The `model:` section of a Blueprint."""
    stacks = {plan.side: spelled_stack(plan, blueprint) for plan in blueprint.stacks()}
    model: dict[str, Any] = {"type": blueprint.type.part.part_name}
    options = blueprint.type.spelled()
    if len(options) > 1:
        model["type"] = options
    for side, stack in stacks.items():
        model |= {side: stack} if len(stacks) > 1 else stack
    model["head"] = spell(blueprint.head)
    if blueprint.heads:
        model["heads"] = {name: spell(head) for name, head in blueprint.heads}
    model["init"] = spell(blueprint.init)
    if blueprint.special_ids:
        model["special_ids"] = dict(blueprint.special_ids)
    return model


def spelled_stack(plan: StackPlan, blueprint: Blueprint) -> dict[str, Any]:
    """The stack keys of one side."""
    default = blueprint.type.part.sides[plan.side]  # type: ignore[attr-defined]
    stack: dict[str, Any] = {"d_model": plan.d_model, "num_layers": plan.num_layers}
    if plan.vocab_size is not None:
        stack["vocab_size"] = plan.vocab_size
    stack |= {
        "max_length": plan.max_length,
        "embedding": spell(plan.embedding),
        "position": _one_or_many(plan.position),
    }
    if plan.memory_width is not None and len(list(blueprint.stacks())) == 1:
        stack["memory"] = {"d_model": plan.memory_width}
    layers = [spelled_layer(layer, default) for layer in plan.layers]
    if len(layers) == 1 and len(set(plan.entries)) == 1:
        stack["layer"] = layers[0]
    else:
        stack["layer"] = {"norm": spell(plan.layers[0].norm)}
        stack["layers"], stack["pattern"] = _pattern(plan, layers)
    return stack | {"final_norm": spell(plan.final_norm), "final_dropout": plan.final_dropout}


def spelled_layer(plan: LayerPlan, causal_by_type: bool) -> dict[str, Any]:
    """One layer, with every option of every part."""
    masks = [rule for rule in plan.mask if not (causal_by_type and rule.part.part_name == "causal")]
    layer: dict[str, Any] = {"residual": spell(plan.residual), "norm": spell(plan.norm), "dropout": plan.dropout}
    layer["mask"] = _one_or_many(masks)
    if plan.position is not None:
        layer["position"] = _one_or_many(plan.position)
    if plan.shared:
        layer["shared"] = True
    layer["sublayers"] = [re.sub(r"_\d+$", "", sublayer.name) for sublayer in plan.sublayers]
    for sublayer in plan.sublayers:
        layer[sublayer.name] = spell(sublayer.config)
        if sublayer.norm != plan.norm:
            layer[f"{sublayer.name}_norm"] = spell(sublayer.norm)
    return layer


def _pattern(plan: StackPlan, layers: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Kinds by name, and the pattern that names them.

    Layers of one entry share weights, so an entry is written once, in an inner list where it returns. Where `per_layer`
    made layers of one entry differ, it is written again.
    """
    labels = [(kind if entry < 0 else -1, entry) for kind, entry in zip(plan.order, plan.entries, strict=True)]
    kinds: dict[Any, list[int]] = {}
    for label, kind in zip(labels, plan.order, strict=True):
        kinds.setdefault(label, []).append(kind)
    names: dict[Any, str] = {}
    texts: dict[str, Any] = {}
    for label, found in kinds.items():
        alike = len(set(found)) == 1
        names[label] = f"kind_{found[0]}" if alike else f"entry_{label[1]}"
        texts[names[label]] = layers[found[0]] if alike else _per_layer([layers[kind] for kind in found])

    def spelled(part: Sequence[Any]) -> list[str]:
        return [f"{names[label]}*{count}" for label, count in _runs(part)]

    before, cycle, after = _folded(labels)
    if not (before or after):
        return texts, spelled(cycle)
    return texts, [*spelled(before), *([spelled(cycle)] if cycle else []), *spelled(after)]


def _folded(labels: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """What comes once, what is then repeated, and what follows: an entry that returns begins the repetition anew."""
    starts: dict[Any, int] = {}
    for index, label in enumerate(labels):
        if index and label == labels[index - 1]:
            continue
        if label[1] >= 0 and label in starts:
            break
        starts.setdefault(label, index)
    else:
        return labels, (), ()
    start = starts[labels[index]]
    cycle = labels[start:index]
    end = index
    while end < len(labels) and labels[end] == cycle[(end - start) % len(cycle)]:
        end += 1
    return labels[:start], cycle, labels[end:]


def _per_layer(texts: Sequence[Any]) -> Any:
    """Texts that differ in single values as one text."""
    first = texts[0]
    if all(text == first for text in texts):
        return first
    if all(isinstance(text, Mapping) and text.keys() == first.keys() for text in texts):
        return {key: _per_layer([text[key] for text in texts]) for key in first}
    if all(isinstance(text, list) and len(text) == len(first) for text in texts):
        return [_per_layer(list(values)) for values in zip(*texts, strict=True)]
    return {"per_layer": list(texts)}


def _runs(values: Sequence[Any]) -> list[tuple[Any, int]]:
    runs: list[tuple[Any, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = value, runs[-1][1] + 1
        else:
            runs.append((value, 1))
    return runs


def _one_or_many(parts: Sequence[Config]) -> Any:
    if not parts:
        return None
    return spell(parts[0]) if len(parts) == 1 else [spell(part) for part in parts]


def _lines(value: Mapping[str, Any], node: Node | None, depth: int) -> Iterator[str]:
    """A mapping in block style; `node` is what the user wrote at that key, if anything."""
    for key, child in value.items():
        written = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        indent = "  " * depth
        if isinstance(child, Mapping) and child:
            yield f"{indent}{key}:"
            yield from _lines(child, written, depth + 1)
        else:
            yield f"{indent}{key}: {scalar(child)}{_origin(written, key, node)}"


def _origin(written: Node | None, key: str, owner: Node | None) -> str:
    if written is not None:
        return f"  # {written.place}"
    if key == "type" and owner is not None and isinstance(owner.value, str):
        return f"  # {owner.place}"
    return "  # default"


def scalar(value: Any) -> str:
    """A value in flow style, as the language reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) is not None and value.lower() not in RESERVED
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(child)}" for key, child in value.items()) + "}"
    return "[" + ", ".join(scalar(child) for child in value) + "]"
