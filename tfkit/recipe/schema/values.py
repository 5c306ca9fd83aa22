"""The pieces that the schema is made of: alternatives, numbers as recipes write them, and definitions by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Form(NamedTuple):
    """How a text is read: an overlay leaves out what stands below it; in a layer, `per_layer` may stand for a value."""

    overlay: bool = False
    in_layer: bool = False

    @property
    def suffix(self) -> str:
        """What the names of definitions in this form end in."""
        return "_in_layer" * self.in_layer + "_overlay" * self.overlay

    def over(self) -> Form:
        """The same as an overlay."""
        return self._replace(overlay=True)


WHOLE, OVERLAY = Form(), Form(overlay=True)
IN_LAYER, IN_KIND = Form(in_layer=True), Form(overlay=True, in_layer=True)

# What an editor reads as text and the language as a number: digits in groups, and a sign before another base.
GROUPED = (
    r"^([-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?"
    r"|[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)+|o[0-7]+(_[0-7]+)+)|[-+]0(x[0-9a-fA-F]+|o[0-7]+))$"
)
SHARED: dict[str, Schema] = {
    "grouped_digits": {
        "description": "a number whose digits stand in groups, such as 10_000",
        "type": "string",
        "pattern": GROUPED,
    },
    "per_layer": {
        "description": "one value for each layer that this text describes, in order",
        "type": "object",
        "properties": {
            "per_layer": {
                "description": "the values: numbers, words or booleans",
                "type": "array",
                "items": {"type": ["number", "string", "boolean"]},
            }
        },
        "additionalProperties": False,
        "minProperties": 1,
    },
}
REFERENCE = "#/definitions/"
ANYTHING: Schema = {}
NONE: Schema = {"enum": ["none"], "enumDescriptions": ["no such thing"]}
TRUE: Schema = {"enum": [True], "enumDescriptions": ["the stack's norm, that of layer.norm"]}
FLAG: Schema = {"type": "boolean"}
GROUPED_DIGITS: Schema = {"$ref": f"{REFERENCE}grouped_digits"}
PER_LAYER: Schema = {"$ref": f"{REFERENCE}per_layer"}


class Definitions:
    """The definitions of a schema by name; each is made when it is first asked for, so that parts may hold parts."""

    def __init__(self) -> None:
        self._made: dict[str, Schema] = dict(SHARED)

    def ref(self, name: str, make: Callable[[], Schema]) -> Schema:
        """A reference to the definition called `name`, made by `make` where it is not there yet."""
        if name not in self._made:
            self._made[name] = {}  # a part that may hold itself finds its name taken
            self._made[name] = make()
        return {"$ref": REFERENCE + name}

    def __getitem__(self, name: str) -> Schema:
        return self._made[name]

    def find(self, reference: str) -> Schema:
        """What a reference leads to: a definition, or something within one."""
        name, *way = reference.removeprefix(REFERENCE).split("/")
        found: Any = self._made[name]
        for step in way:
            found = found[int(step) if isinstance(found, list) else step]
        return dict(found)

    def without_twins(self, schema: Schema) -> Schema:
        """`schema` with all definitions that it needs, by name; of equal ones, the first by length and name stays."""
        made = dict(sorted(self._made.items(), key=lambda item: (len(item[0]), item[0])))
        while names := _twins(made):
            made = {name: _renamed(one, names) for name, one in made.items() if REFERENCE + name not in names}
            schema = _renamed(schema, names)
        return schema | {"definitions": dict(sorted(made.items()))}


def number(kind: str, form: Form, **bounds: Any) -> list[Schema]:
    """The ways to write a number; `kind` is integer or number, bounds are named as JSON Schema does."""
    return [{"type": kind, **bounds}, GROUPED_DIGITS, *varied(form)]


def varied(form: Form) -> list[Schema]:
    """`{per_layer: [...]}`, where it may stand."""
    return [PER_LAYER] * form.in_layer


def either(*alternatives: Schema) -> Schema:
    """Any of these; words are gathered into one list, which an editor offers, and a fault names, at once."""
    if ANYTHING in alternatives:
        return ANYTHING
    found = _different(_flat(alternatives))
    words = [one for one in found if one.keys() <= {"enum", "enumDescriptions"}]
    others = [one for one in found if one not in words and one != PER_LAYER]
    # in this order an editor blames a wrong word on the words, and a wrong option on the mapping
    kept = others + ([_one_list(words)] if words else []) + [PER_LAYER] * (PER_LAYER in found)
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def one_or_many(one: Schema, item: Schema) -> list[Schema]:
    """One of something, or a list."""
    return [one, {"type": "array", "items": item}]


def described(text: str, schema: Schema) -> Schema:
    """The same with a description, which stands first."""
    return {"description": text, **schema}


def closed(properties: Schema, required: Iterable[str] = (), **more: Any) -> Schema:
    """A mapping with no keys but these; what is missing is reported once no word in it is wrong."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return schema | needing(list(required), properties)


def needing(required: list[str], known: Iterable[str]) -> Schema:
    """The demand for `required`."""
    return unless_misspelt(known, {"required": required}) if required else {}


def unless_misspelt(known: Iterable[str], demand: Schema) -> Schema:
    """`demand`, made of a mapping whose keys are all `known`: a misspelt key is one fault and not two."""
    return {"if": {"propertyNames": {"enum": list(known)}}, "then": demand}


def _twins(made: Mapping[str, Schema]) -> dict[str, str]:
    """The definitions that are equal to an earlier one, each with the reference to use instead."""
    first: dict[str, str] = {}
    found = {name: first.setdefault(json.dumps(one, sort_keys=True), name) for name, one in made.items()}
    return {REFERENCE + name: REFERENCE + earlier for name, earlier in found.items() if name != earlier}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The same with other references."""
    if isinstance(value, dict):
        return {
            key: _redirected(one, names) if key == "$ref" and isinstance(one, str) else _renamed(one, names)
            for key, one in value.items()
        }
    return [_renamed(one, names) for one in value] if isinstance(value, list) else value


def _redirected(reference: str, names: Mapping[str, str]) -> str:
    """A reference to a definition, or to something within it, that may have another name now."""
    name, slash, way = reference.removeprefix(REFERENCE).partition("/")
    return names.get(REFERENCE + name, REFERENCE + name) + slash + way


def _flat(alternatives: Iterable[Schema]) -> Iterable[Schema]:
    for one in alternatives:
        if one.keys() == {"anyOf"}:
            yield from _flat(one["anyOf"])
        else:
            yield one


def _different(alternatives: Iterable[Schema]) -> list[Schema]:
    return list({json.dumps(one, sort_keys=True): one for one in alternatives}.values())


def _one_list(lists: Iterable[Schema]) -> Schema:
    """The words of several lists, each with its description; an empty one where a word has none."""
    texts: dict[Any, str] = {}
    for one in lists:
        for word, text in zip(one["enum"], one.get("enumDescriptions", [""] * len(one["enum"])), strict=True):
            texts.setdefault(word, text)
    words = {"enum": list(texts)}
    return words | {"enumDescriptions": list(texts.values())} if any(texts.values()) else words
