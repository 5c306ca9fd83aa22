"""Overlays: the merge rules (R20), parsing of `--set`, overrides and variants, and formatting as recipe text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfkit.core.bounds import Tree
from tfkit.core.errors import Fault, Place, RecipeError
from tfkit.core.synonyms import nearest
from tfkit.recipe.text.node import Node, inline, kind, shorten, under
from tfkit.recipe.text.source import MAPPING, from_value, parse, parse_value

# sections besides those in SECTIONS: mappings that are not parts; they merge by key, and replace any other value
_SECTION_PATHS = {
    "", "data", "data.batch", "data.split", "train", "train.validate", "train.keep", "train.parallel",
    "train.evaluations", "train.generation_rate", "train.init_from", "train.teacher", "generate", "study",
    "study.match", "study.baseline", "study.seeds", "study.sizes", "study.design", "study.design.confirm",
}  # fmt: skip
# mutually exclusive keys of a section: setting one removes the other
_ALTERNATIVES = {"train": {"steps": "epochs", "epochs": "steps"}, "data.batch": {"tokens": "size", "size": "tokens"}}
_PART_OR_SIDES = {"data.tokenizer"}  # one part, or a mapping with a part per side; one form replaces the other


def merge(base: Node, over: Node, faults: list[Fault]) -> Node:
    """Merge `over` into `base`. If they cannot be merged, add a fault and return `base`.

    - Mappings merge by key. Lists, numbers, booleans and none are not merged: the new value replaces the old one.
    - A part whose `type` changes is replaced. The nodes lost, starting with the old `type`, are kept in `.dropped`.
    - A word is expanded to `{type: word}` if the other value is a mapping, so that parts of equal type merge.
    - A mapping without `type` over a list, a number, false or none is ambiguous and adds a fault. It may replace
      `true` (`norm: true` is the stack's norm, R12), and it may replace anything in a section, which has no type.
    - `{per_layer: [...]}` (R5) counts as a plain value and is not merged.

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
    """True if the value at `path` is a section (model, encoder, layer, a kind, train, ...) rather than a part."""
    from tfkit.recipe.keys import SECTIONS  # imported late: loads Pydantic, which parsing does not need

    parent, _, key = path.rpartition(".")
    return (
        path in _SECTION_PATHS or key in SECTIONS or key in ("model", "gate") or parent.rpartition(".")[2] == "layers"
    )


def as_part(node: Node) -> Node:
    """Expand a word to `{type: word}`; return other nodes unchanged."""
    if not isinstance(node.value, str):
        return node
    named = replace(node, path=under(node.path, "type"), dropped=())
    return replace(node, value={"type": named})


def _names_sides(node: Node) -> bool:
    """True for a mapping with `source` or `target`, one part per side, and no `type`."""
    return node.get("type") is None and (node.get("source") is not None or node.get("target") is not None)


def _lay_mapping(base: Node, over: Node, faults: list[Fault]) -> Node:
    base = as_part(base)
    old, new = base.get("type"), over.get("type")
    if isinstance(base.value, dict):
        changes = old is not None and new is not None and old.value != new.value
        return _replaced(base, over) if changes else _merged(base, over, faults)
    if new is not None or base.value is True:
        return over.over(base)
    way_out = "write the whole list" if isinstance(base.value, list) else "set its type"
    text = f"options without a type cannot be merged over {kind(base)} (at {base.place}); {way_out}"
    faults.append(Fault(over.place, over.path, text))
    return base


def _merged(base: Node, over: Node, faults: list[Fault]) -> Node:
    value = dict(base.entries)
    for key, other in _ALTERNATIVES.get(over.path, {}).items():
        if (node := over.get(key)) is not None and node.value is not None and over.get(other) is None:
            value.pop(other, None)
    for key, child in over.entries.items():
        value[key] = merge(value[key], child, faults) if key in value else child
    # the outer mappings of a dotted key (`--set a.b=..`) have no place of their own, so faults about missing keys are
    # reported at the place of the base
    frame = base if over.place == over.key_place else over
    return replace(frame, value=value, path=over.path, dropped=_still_dropped(base, over, value))


def _replaced(base: Node, over: Node) -> Node:
    old, new = base.entries, over.entries
    lost = [node for key, node in old.items() if key != "type" and key not in new]
    dropped = (old["type"], *lost) if lost else ()
    value = {key: child.over(old[key]) if key in old else child for key, child in new.items()}
    return replace(over, value=value, dropped=dropped + _still_dropped(base, over, value))


def _still_dropped(base: Node, over: Node, value: dict[str, Node]) -> tuple[Node, ...]:
    """Return the nodes dropped by earlier merges that have not been set again."""
    earlier = base.dropped + over.dropped
    return tuple(node for node in earlier if (key := node.path.rpartition(".")[2]) == "type" or key not in value)


def _is_per_layer(node: Node) -> bool:
    return isinstance(node.value, dict) and len(node.value) == 1 and "per_layer" in node.value


# keys that control the composition of a recipe and cannot be overlaid
COMPOSING_KEYS = ("extends", "variants")
MAX_KEYS = 1_000  # keys of one variant, which are merged one after another
LONGEST_PLACE = 200  # maximum length of user input quoted as the place of a fault


@dataclass(frozen=True)
class Axis:
    """A variant with several values for one option: `heads: {model.layer.attention.num_heads: [1, 4, 16]}`."""

    name: str
    choices: tuple[Node, ...]

    def written(self) -> list[str]:
        """Format the choices as arguments of `--variant`."""
        return [f"{self.name}={inline(choice.plain())}" for choice in self.choices]

    def find(self, value: Node) -> Node | None:
        """Return the choice equal to `value`, or the only choice whose type is the word `value`."""
        text = json.dumps(value.plain(), sort_keys=True)  # unlike ==, distinguishes true from 1
        equal = [choice for choice in self.choices if json.dumps(choice.plain(), sort_keys=True) == text]
        typed = [choice for choice in self.choices if (named := choice.get("type")) and named.value == value.value]
        return equal[0] if equal else typed[0] if len(typed) == 1 else None


Variant = Axis | Node


def set_overlay(text: str, faults: list[Fault]) -> Node | None:
    """Parse the argument of `--set key=value` to an overlay; return None after a fault."""
    place = Place(f"--set {shorten(text, LONGEST_PLACE)}")
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        faults.append(Fault(place, "", "expected key=value, as in model.num_layers=4"))
        return None
    if not _usable(key, place, faults):
        return None
    leaf, problems = parse_value(value, place, key)
    faults += problems
    return None if problems else nested(key, leaf)


def override_overlay(key: object, value: object, faults: list[Fault]) -> Node | None:
    """Convert one item of `overrides={"model.num_layers": 4}` to an overlay; return None after a fault."""
    place = Place("<overrides>")
    if not isinstance(key, str):
        faults.append(Fault(place, "", f"a key must be a word, not {shorten(repr(key))}"))
        return None
    if not _usable(key, place, faults):
        return None
    leaf, problems = from_value(value, place, key)
    faults += problems
    return None if problems else nested(key, leaf)


def overlaid(section: str, base: Mapping[str, object], *overlays: Mapping[str, object]) -> dict[str, object]:
    """Merge overlays over the data of a section; their keys may be dotted. Raise RecipeError for faults."""
    place = Place(MAPPING)
    tree, problems = from_value({section: base}, place, "")
    for key, value in (pair for overlay in overlays for pair in overlay.items()):
        leaf, faults = from_value(value, place, f"{section}.{key}")
        tree = merge(tree, nested(leaf.path, leaf), faults)
        problems += faults
    if problems:
        raise RecipeError(problems)
    data: Tree = tree.entries[section].plain()
    return data


def nested(key: str, leaf: Node) -> Node:
    """Build the tree from the root down to `leaf` at the dotted path `key`."""
    parts = key.split(".")
    place = leaf.key_place or leaf.place
    for depth in reversed(range(len(parts))):
        leaf = Node({parts[depth]: leaf}, place, ".".join(parts[:depth]), place)
    return leaf


def read_variants(entries: Mapping[str, Node], faults: list[Fault]) -> dict[str, Variant]:
    """Parse the variants of a recipe.

    An entry with a single key and a list as its value is an axis; any other entry is an overlay. To override an option
    with a list, nest it one level deeper: `shallow: {model: {pattern: [local, global]}}`.
    """
    parsed = {name: _variant(name, entry, faults) for name, entry in entries.items()}
    return {name: variant for name, variant in parsed.items() if variant is not None}


def choose(text: str, variants: Mapping[str, Variant], faults: list[Fault]) -> Node | None:
    """Return the overlay selected by `--variant text` (`wide`, `heads=4`), or None after a fault."""
    place = Place(f"--variant {shorten(text, LONGEST_PLACE)}")
    name, equals, value = text.partition("=")
    variant = variants.get(name.strip())
    if variant is None:
        available = shorten(", ".join(choices(variants)), 400) or "none"
        message = f"unknown variant '{shorten(name)}'; available: {available}"
        faults.append(Fault(place, "", message, nearest(name, list(variants))))
        return None
    if isinstance(variant, Axis):
        return _choose_value(variant, value if equals else None, place, faults)
    if equals:
        faults.append(Fault(place, "", f"'{name}' has no values to choose from; use --variant {name}"))
        return None
    return variant.came(f"variant {name}")


def choices(variants: Mapping[str, Variant]) -> list[str]:
    """Return all possible arguments of `--variant`: `wide`, `heads=1`, `heads=4`, ..."""
    written = [one.written() if isinstance(one, Axis) else [name] for name, one in variants.items()]
    return [text for texts in written for text in texts]


def _choose_value(axis: Axis, value: str | None, place: Place, faults: list[Fault]) -> Node | None:
    possible = f"use one of {shorten(', '.join(axis.written()), 400)}"
    if value is None:
        faults.append(Fault(place, "", f"'{axis.name}' needs a value; {possible}"))
        return None
    parsed, problems = parse_value(value, place, "")
    faults += problems
    if problems:
        return None
    choice = axis.find(parsed)
    if choice is None:
        faults.append(Fault(place, "", f"{shorten(value)} is not a value of '{axis.name}'; {possible}"))
        return None
    return nested(choice.path, choice.came(f"variant {axis.name}={inline(choice.plain())}"))


def _variant(name: str, entry: Node, faults: list[Fault]) -> Variant | None:
    if not isinstance(entry.value, dict) or len(entry.value) > MAX_KEYS:
        message = f"has {len(entry.entries):,} keys; the limit is {MAX_KEYS:,}"
        if not entry.entries:
            message = f"expected a mapping of dotted keys to values, got {kind(entry)}"
        faults.append(Fault(entry.place, entry.path, message))
        return None
    usable = [_usable(key, node.key_place or node.place, faults, entry.path) for key, node in entry.value.items()]
    if not all(usable):
        return None
    overlay = Node({}, entry.place, "", entry.place)
    for key, node in entry.value.items():
        if len(usable) == 1 and isinstance(node.value, list):
            if not node.value:
                faults.append(Fault(node.place, node.path, "an axis needs at least one value"))
                return None
            return Axis(name, tuple(choice.moved(key, node.key_place) for choice in node.value))
        overlay = merge(overlay, nested(key, node.moved(key)), faults)
    return overlay


def _usable(key: str, place: Place, faults: list[Fault], path: str = "") -> bool:
    """Return True if an overlay may set the dotted `key`; otherwise add a fault."""
    parts = key.split(".")
    if not all(part.strip() for part in parts):
        message = f"expected a dotted key, such as model.layer.dropout, got '{shorten(key)}'"
    elif "[" in key or "]" in key:
        message = f"'{shorten(key)}': cannot set a single item of a list; replace the whole list"
    elif parts[0] in COMPOSING_KEYS:
        message = f"'{parts[0]}' can only be set in the recipe file, not by variants, --set or overrides"
    else:
        return True
    faults.append(Fault(place, path, message))
    return False


WIDTH = 120  # maximum line width


def written(data: Mapping[str, object]) -> str:
    """Format `data` as the text of a recipe."""
    lines = [line for key, value in data.items() for line in _lines(key, value, key, 0)]
    return "".join(f"{line}\n" for line in lines) or "{}\n"


def edited(text: str, key: str, value: object) -> str:
    """Merge `value` into a recipe's text at the dotted `key` (R20); comments and formatting are lost.

    Raise RecipeError if the text or the key is invalid.
    """
    root, faults = parse(text, "<text>")
    overlay = override_overlay(key, value, faults)
    merged = root if overlay is None else merge(root, overlay, faults)
    if faults:
        raise RecipeError(faults)
    return written(merged.plain())


def _lines(key: str, value: Any, path: str, indent: int) -> list[str]:
    """Format a key and its value in block style, with a short mapping other than a section on one line."""
    head = f"{' ' * indent}{inline(key)}:"
    line = f"{head} {inline(value)}"
    if not isinstance(value, dict) or not value:
        return [line]
    spread = "." not in path or (is_section(path) and any(isinstance(child, dict) for child in value.values()))
    if not spread and len(line) <= WIDTH:
        return [line]
    return [head, *(one for name, child in value.items() for one in _lines(name, child, under(path, name), indent + 2))]
