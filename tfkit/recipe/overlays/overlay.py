"""Overlays with dotted keys: `--set`, Python overrides, and the variants of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfkit.core.errors import Fault, Place, RecipeError
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays.merge import merge
from tfkit.recipe.text.node import Node, inline, kind, shorten
from tfkit.recipe.text.source import MAPPING, from_value, parse_value

# These control the composition of a recipe and cannot be overlaid.
COMPOSING_KEYS = ("extends", "variants")
MAX_KEYS = 1_000  # of one variant: each is merged over its predecessors
LONGEST_PLACE = 200  # maximum length of quoted user input; a place is on one line


@dataclass(frozen=True)
class Axis:
    """A variant with several values for one option: `heads: {model.layer.attention.num_heads: [1, 4, 16]}`."""

    name: str
    choices: tuple[Node, ...]

    def written(self) -> list[str]:
        """Format the choices as arguments of `--variant`."""
        return [f"{self.name}={inline(choice.plain())}" for choice in self.choices]

    def find(self, value: Node) -> Node | None:
        """Return the choice equal to `value`, or the only one with that word as its type."""
        wanted = json.dumps(value.plain(), sort_keys=True)  # unlike ==, distinguishes true from 1
        equal = [choice for choice in self.choices if json.dumps(choice.plain(), sort_keys=True) == wanted]
        typed = [choice for choice in self.choices if (named := choice.get("type")) and named.value == value.value]
        return equal[0] if equal else typed[0] if len(typed) == 1 else None


Variant = Axis | Node


def set_overlay(text: str, faults: list[Fault]) -> Node | None:
    """Parse `--set key=value` to an overlay; None after a fault."""
    place = Place(f"--set {shorten(text, LONGEST_PLACE)}")
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        faults.append(Fault(place, "", "write key=value, as in model.num_layers=4"))
        return None
    if not _usable(key, place, faults):
        return None
    leaf, found = parse_value(value, place, key)
    faults += found
    return None if found else nested(key, leaf)


def override_overlay(key: Any, value: Any, faults: list[Fault]) -> Node | None:
    """Convert one Python override (`{"model.num_layers": 4}`) to an overlay; None after a fault."""
    place = Place("<overrides>")
    if not isinstance(key, str):
        faults.append(Fault(place, "", f"a key must be a word, not {shorten(repr(key))}"))
        return None
    if not _usable(key, place, faults):
        return None
    leaf, found = from_value(value, place, key)
    faults += found
    return None if found else nested(key, leaf)


def laid(section: str, base: Mapping[str, Any], *overlays: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overlays with possibly dotted keys over the data of a section; raise RecipeError for faults."""
    place = Place(MAPPING)
    tree, found = from_value({section: base}, place, "")
    for key, value in (pair for overlay in overlays for pair in overlay.items()):
        leaf, faults = from_value(value, place, f"{section}.{key}")
        tree = merge(tree, nested(leaf.path, leaf), faults)
        found += faults
    if found:
        raise RecipeError(found)
    data: dict[str, Any] = tree.entries[section].plain()
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

    An entry with exactly one key whose value is a list is an axis; every other entry is an overlay. A value that is
    itself a list is therefore nested one level deeper: `shallow: {model: {pattern: [local, global]}}`.
    """
    found = {}
    for name, entry in entries.items():
        variant = _variant(name, entry, faults)
        if variant is not None:
            found[name] = variant
    return found


def choose(text: str, variants: Mapping[str, Variant], faults: list[Fault]) -> Node | None:
    """Return the overlay of `--variant text` (`wide`, `heads=4`), or None after a fault."""
    place = Place(f"--variant {shorten(text, LONGEST_PLACE)}")
    name, equals, value = text.partition("=")
    variant = variants.get(name.strip())
    if variant is None:
        known = shorten(", ".join(choices(variants)), 400) or "none"
        message = f"unknown variant '{shorten(name)}'; the variants of this recipe: {known}"
        faults.append(Fault(place, "", message, nearest(name, list(variants))))
        return None
    if isinstance(variant, Axis):
        return _choose_value(variant, value if equals else None, place, faults)
    if equals:
        faults.append(Fault(place, "", f"'{name}' has no values to choose from; say --variant {name}"))
        return None
    return variant.came(f"variant {name}")


def choices(variants: Mapping[str, Variant]) -> list[str]:
    """Return all arguments of `--variant`: `wide`, `heads=1`, `heads=4`, ..."""
    return [text for name, variant in variants.items() for text in _written(name, variant)]


def _written(name: str, variant: Variant) -> list[str]:
    return variant.written() if isinstance(variant, Axis) else [name]


def _choose_value(axis: Axis, value: str | None, place: Place, faults: list[Fault]) -> Node | None:
    possible = f"say one of {shorten(', '.join(axis.written()), 400)}"
    if value is None:
        faults.append(Fault(place, "", f"'{axis.name}' is a list to choose from; {possible}"))
        return None
    given, found = parse_value(value, place, "")
    faults += found
    if found:
        return None
    choice = axis.find(given)
    if choice is None:
        faults.append(Fault(place, "", f"{shorten(value)} is none of the values of '{axis.name}'; {possible}"))
        return None
    return nested(choice.path, choice.came(f"variant {axis.name}={inline(choice.plain())}"))


def _variant(name: str, entry: Node, faults: list[Fault]) -> Variant | None:
    if not isinstance(entry.value, dict):
        message = f"a variant is a mapping of dotted keys to values, this is {kind(entry)}"
        faults.append(Fault(entry.place, entry.path, message))
        return None
    if len(entry.value) > MAX_KEYS:
        message = f"a variant sets at most {MAX_KEYS:,} keys, this one {len(entry.value):,}"
        faults.append(Fault(entry.place, entry.path, message))
        return None
    usable = [_usable(key, node.key_place or node.place, faults, entry) for key, node in entry.value.items()]
    if not all(usable):
        return None
    overlay = Node({}, entry.place, "", entry.place)
    for key, node in entry.value.items():
        if len(usable) == 1 and isinstance(node.value, list):
            return _axis(name, key, node, node.value, faults)
        overlay = merge(overlay, nested(key, node.moved(key)), faults)
    return overlay


def _axis(name: str, key: str, values: Node, choices: Sequence[Node], faults: list[Fault]) -> Axis | None:
    if not choices:
        faults.append(Fault(values.place, values.path, "an axis needs at least one value to choose"))
        return None
    return Axis(name, tuple(choice.moved(key, values.key_place) for choice in choices))


def _usable(key: str, place: Place, faults: list[Fault], entry: Node | None = None) -> bool:
    """Return True if the dotted `key` can be overlaid; otherwise add a fault."""
    message = _unusable(key)
    if message:
        faults.append(Fault(place, entry.path if entry else "", message))
    return message is None


def _unusable(key: str) -> str | None:
    parts = key.split(".")
    if not all(part.strip() for part in parts):
        return f"'{shorten(key)}' is no dotted key like model.layer.dropout"
    if "[" in key or "]" in key:
        return f"'{shorten(key)}': a list is replaced whole; items cannot be set one by one"
    if parts[0] in COMPOSING_KEYS:
        return f"'{parts[0]}' cannot be laid over a recipe; write it in the file"
    return None
