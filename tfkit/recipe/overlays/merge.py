"""Merging of trees: rule R20, used for extends, variants, --set, encoder and decoder, and kinds."""

from __future__ import annotations

from dataclasses import replace

from tfkit.core.errors import Fault
from tfkit.recipe.text.node import Node, kind, under

# besides keys declared as sections: mappings that are not parts and merge regardless of `type`
_SECTION_PATHS = {"", "data", "data.batch", "train", "train.keep", "train.validate", "generate", "study", "study.match"}

# alternative keys of a section: setting one removes the other
_ALTERNATIVES = {"train": {"steps": "epochs", "epochs": "steps"}}

_PART_OR_SIDES = {"data.tokenizer"}  # one replaces the other entirely


def merge(base: Node, over: Node, faults: list[Fault]) -> Node:
    """Merge `over` into `base`; an impossible merge is a fault and keeps `base`.

    - Mappings merge by key; lists, numbers, booleans and none are replaced as a whole, and replace the whole.
    - A part is replaced as a whole if its `type` changes; the lost nodes, the old `type` first, are kept in `.dropped`.
    - A word becomes `{type: word}` if the other side is a mapping, so that equal types merge.
    - A mapping without `type` is ambiguous over a list, a number, false or none: a fault. It is allowed over `true`
      (`norm: true` is the stack's norm, R12), and over anything in a section, which has no type.
    - `{per_layer: [...]}` (R5) is a plain value: replaced as a whole, and replaces the whole.

    Replaced values are kept in `.under`.
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
    """True if the value at `path` is a section (model, encoder, layer, a kind, train, ...) and not a part."""
    from tfkit.recipe.keys import SECTIONS  # needs Pydantic, which finding and reading a recipe does not

    parent, _, key = path.rpartition(".")
    return (
        path in _SECTION_PATHS or key in SECTIONS or key in ("model", "gate") or parent.rpartition(".")[2] == "layers"
    )


def as_part(node: Node) -> Node:
    """Expand a word to the mapping that it abbreviates; others are unchanged."""
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
    # A mapping that only leads to an option (`--set a.b=..`, a variant's dotted key) has no place except that of its
    # key. Faults about missing keys are then better reported at the place of the base.
    frame = base if over.place == over.key_place else over
    return replace(frame, value=value, path=over.path, dropped=_still_dropped(base, over, value))


def _replaced(base: Node, over: Node) -> Node:
    old, new = base.entries, over.entries
    lost = [node for key, node in old.items() if key != "type" and key not in new]
    dropped = (old["type"], *lost) if lost else ()
    value = {key: child.over(old[key]) if key in old else child for key, child in new.items()}
    return replace(over, value=value, dropped=dropped + _still_dropped(base, over, value))


def _still_dropped(base: Node, over: Node, value: dict[str, Node]) -> tuple[Node, ...]:
    """Return nodes dropped by earlier merges and not set again since."""
    earlier = base.dropped + over.dropped
    return tuple(node for node in earlier if (key := node.path.rpartition(".")[2]) == "type" or key not in value)


def _is_per_layer(node: Node) -> bool:
    return isinstance(node.value, dict) and len(node.value) == 1 and "per_layer" in node.value
