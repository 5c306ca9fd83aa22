"""Laying one tree over another: rule R20, the same for extends, variants, --set, encoder and decoder, and kinds."""

from __future__ import annotations

from dataclasses import replace

from tfkit.core.errors import Fault
from tfkit.recipe.text.node import Node, kind, under

# besides the keys that are declared so: mappings that are no parts, and merge whatever their `type` says
_SECTION_PATHS = {"", "data", "data.batch", "train", "train.keep", "train.validate", "generate", "study", "study.match"}

# keys of a section that say the same in two ways: the later one takes the place of the other
_ALTERNATIVES = {"train": {"steps": "epochs", "epochs": "steps"}}

_PART_OR_SIDES = {"data.tokenizer"}  # one replaces the other whole


def merge(base: Node, over: Node, faults: list[Fault]) -> Node:
    """`over` laid over `base`; what cannot be laid is a fault, and then `base` stays.

    - Mappings merge by key; lists, numbers, booleans and none are replaced whole, and replace whole.
    - A part whose `type` changes is replaced whole; what it lost, its old `type` first, is kept in `.dropped`.
    - A word is `{type: word}` as soon as the other side is a mapping, so that the same type merges.
    - A mapping without `type` cannot say which part it means over a list, a number, false or none: a fault. Over
      `true` it may stand (`norm: true` is the stack's norm, R12), and over anything in a section, which has no type.
    - `{per_layer: [...]}` (R5) is a plain value: replaced whole, and replaces whole.

    What a value replaces, it keeps in `.under`.
    """
    if _is_per_layer(base) or _is_per_layer(over):
        return over.over(base)
    if is_section(over.path):
        both = isinstance(base.value, dict) and isinstance(over.value, dict)
        return _merged(base, over, faults) if both else over.over(base)
    if over.path in _PART_OR_SIDES and _names_sides(base) != _names_sides(over):
        return over.over(base)
    if isinstance(over.value, dict):
        return _lay_mapping(base, over, faults)
    if isinstance(over.value, str) and isinstance(base.value, dict):
        return _lay_mapping(base, as_part(over), faults)
    return over.over(base)


def is_section(path: str) -> bool:
    """Whether what stands at `path` is a section (model, encoder, layer, a kind, train, ...) and not a part."""
    from tfkit.recipe.keys import SECTIONS  # which takes Pydantic: a recipe is found and read without it

    parent, _, key = path.rpartition(".")
    return (
        path in _SECTION_PATHS or key in SECTIONS or key in ("model", "gate") or parent.rpartition(".")[2] == "layers"
    )


def as_part(node: Node) -> Node:
    """A word as the mapping it is short for; anything else as it is."""
    if not isinstance(node.value, str):
        return node
    named = replace(node, path=under(node.path, "type"), dropped=())
    return replace(node, value={"type": named})


def _names_sides(node: Node) -> bool:
    """True for a mapping with a part for each side, which has no type of its own."""
    return node.get("type") is None and (node.get("source") is not None or node.get("target") is not None)


def _lay_mapping(base: Node, over: Node, faults: list[Fault]) -> Node:
    base = as_part(base)
    if not isinstance(base.value, dict):
        if over.get("type") is not None or base.value is True:
            return over.over(base)
        faults.append(Fault(over.place, over.path, _without_type(base)))
        return base
    return _replaced(base, over) if _changes_type(base, over) else _merged(base, over, faults)


def _without_type(base: Node) -> str:
    way_out = "write the whole list" if isinstance(base.value, list) else "say its type"
    return f"options without a type cannot be laid over {kind(base)} (at {base.place}); {way_out}"


def _changes_type(base: Node, over: Node) -> bool:
    old, new = base.get("type"), over.get("type")
    return old is not None and new is not None and old.value != new.value


def _merged(base: Node, over: Node, faults: list[Fault]) -> Node:
    value = dict(base.entries)
    for key, other in _ALTERNATIVES.get(over.path, {}).items():
        if (node := over.get(key)) is not None and node.value is not None and over.get(other) is None:
            value.pop(other, None)
    for key, child in over.entries.items():
        value[key] = merge(value[key], child, faults) if key in value else child
    # A mapping that only leads to an option (`--set a.b=..`, a variant's dotted key) has no place of its own: its key
    # stands where it stands. What is missing in the whole is then better told at the place of the base.
    frame = base if over.place == over.key_place else over
    return replace(frame, value=value, path=over.path, dropped=_still_dropped(base, over, value))


def _replaced(base: Node, over: Node) -> Node:
    old, new = base.entries, over.entries
    lost = [node for key, node in old.items() if key != "type" and key not in new]
    dropped = (old["type"], *lost) if lost else ()
    value = {key: child.over(old[key]) if key in old else child for key, child in new.items()}
    return replace(over, value=value, dropped=dropped + _still_dropped(base, over, value))


def _still_dropped(base: Node, over: Node, value: dict[str, Node]) -> tuple[Node, ...]:
    """What earlier merges dropped and no later one has set again."""
    earlier = base.dropped + over.dropped
    return tuple(node for node in earlier if (key := node.path.rpartition(".")[2]) == "type" or key not in value)


def _is_per_layer(node: Node) -> bool:
    return isinstance(node.value, dict) and len(node.value) == 1 and "per_layer" in node.value
