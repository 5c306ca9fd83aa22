"""Building blocks of the schema: references, alternatives, mappings, and numbers in recipe notation."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

REFERENCE = "#/definitions/"
ANYTHING: Schema = {}
NONE: Schema = {"enum": ["none"], "enumDescriptions": ["no such thing"]}
TRUE: Schema = {"enum": [True], "enumDescriptions": ["the stack's norm, that of layer.norm"]}
# Numbers that editors parse as text: grouped digits, and signed hexadecimal or octal.
GROUPED = (
    r"^([-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?"
    r"|[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)+|o[0-7]+(_[0-7]+)+)|[-+]0(x[0-9a-fA-F]+|o[0-7]+))$"
)


def refer(name: str) -> Schema:
    """Return a reference to definition `name`."""
    return {"$ref": REFERENCE + name}


PER_LAYER = refer("per_layer")


def number(kind: str, **bounds: Any) -> Schema:
    """Return the schema of a number; `kind` is integer or number, bounds are JSON Schema keywords."""
    return {"anyOf": [{"type": kind, **bounds}, refer("grouped_digits")]}


def either(*alternatives: Schema) -> Schema:
    """Join alternatives; their words are merged into one enum, for completion and error messages."""
    flat = [one for schema in alternatives for one in (schema["anyOf"] if schema.keys() == {"anyOf"} else [schema])]
    if ANYTHING in flat:
        return ANYTHING
    others: list[Schema] = []
    texts: dict[Any, str] = {}
    for one in flat:
        if one.keys() <= {"enum", "enumDescriptions"}:
            texts = dict(zip(one["enum"], one.get("enumDescriptions", [""] * len(one["enum"])), strict=True)) | texts
        elif one not in others:
            others.append(one)
    words: Schema = {"enum": list(texts)} | ({"enumDescriptions": list(texts.values())} if any(texts.values()) else {})
    # order matters: editors report a wrong word against the enum, and a wrong option against the mapping
    kept = [one for one in others if one != PER_LAYER] + [words] * bool(texts) + [PER_LAYER] * (PER_LAYER in others)
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def many(item: Schema, **bounds: int) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, **bounds}


def closed(properties: Schema) -> Schema:
    """Return the schema of a mapping without other keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def named(value: Schema, **more: Any) -> Schema:
    """Return the schema of a mapping from names to `value` or none."""
    return {**closed({}), **more, "additionalProperties": either(value, NONE)}


_EACH = many({"type": ["number", "string", "boolean"]})
SHARED: dict[str, Schema] = {
    "grouped_digits": {
        "description": "a number whose digits stand in groups, such as 10_000",
        "type": "string",
        "pattern": GROUPED,
    },
    "per_layer": {
        "description": "one value for each layer that this text describes, in order",
        **closed({"per_layer": {"description": "the values: numbers, words or booleans", **_EACH}}),
        "minProperties": 1,
    },
}
