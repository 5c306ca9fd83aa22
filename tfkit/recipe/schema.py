"""JSON Schema of the recipe language for editors, generated from the declared keys and the registered parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tfkit.core import bounds
from tfkit.core.component import Component
from tfkit.core.keys import FlagValue, Key, Kind, NormValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.architecture.heads import SPECIAL
from tfkit.recipe.architecture.stack import LAST_STATE
from tfkit.recipe.keys import LAYER, LEAVES, MODEL, STACK, SUBLAYERS, TOP
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.node import inline
from tfkit.recipe.text.source import LANGUAGE

Schema = dict[str, Any]
REFERENCE = "#/definitions/"
ANYTHING: Schema = {}
NONE: Schema = {"enum": ["none"], "enumDescriptions": ["no value"]}
TRUE: Schema = {"enum": [True], "enumDescriptions": ["the stack's norm, as in layer.norm"]}
# numbers that editors parse as text: grouped digits, and signed hexadecimal or octal
GROUPED = (
    r"^([-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?"
    r"|[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)+|o[0-7]+(_[0-7]+)+)|[-+]0(x[0-9a-fA-F]+|o[0-7]+))$"
)


def refer(name: str) -> Schema:
    """Return a $ref to the definition `name`."""
    return {"$ref": REFERENCE + name}


PER_LAYER = refer("per_layer")


def number(kind: str, **bounds: object) -> Schema:
    """Return the schema of a number: `kind` is "integer" or "number", `bounds` are JSON Schema keywords."""
    return {"anyOf": [{"type": kind, **bounds}, refer("grouped_digits")]}


def either(*alternatives: Schema) -> Schema:
    """Return the union of schemas. Words are merged into one enum, which editors need for completion and errors."""
    flat = [one for schema in alternatives for one in (schema["anyOf"] if schema.keys() == {"anyOf"} else [schema])]
    if ANYTHING in flat:
        return ANYTHING
    others: list[Schema] = []
    texts: dict[object, str] = {}
    for one in flat:
        if one.keys() <= {"enum", "enumDescriptions"}:
            texts = dict(zip(one["enum"], one.get("enumDescriptions", [""] * len(one["enum"])), strict=True)) | texts
        elif one not in others:
            others.append(one)
    words: Schema = {"enum": list(texts)} | ({"enumDescriptions": list(texts.values())} if any(texts.values()) else {})
    # order matters: editors check a wrong word against the enum, and a wrong option against the mapping
    kept = [one for one in others if one != PER_LAYER] + [words] * bool(texts) + [PER_LAYER] * (PER_LAYER in others)
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def many(item: Schema, **bounds: int) -> Schema:
    """Return the schema of a list of `item`."""
    return {"type": "array", "items": item, **bounds}


def closed(properties: Schema) -> Schema:
    """Return the schema of a mapping that allows only these keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def named(value: Schema, **more: object) -> Schema:
    """Return the schema of a mapping from arbitrary names to `value` or none."""
    return {**closed({}), **more, "additionalProperties": either(value, NONE)}


_EACH = many({"type": ["number", "string", "boolean"]})
SHARED: dict[str, Schema] = {
    "grouped_digits": {
        "description": "a number with grouped digits, such as 10_000",
        "type": "string",
        "pattern": GROUPED,
    },
    "per_layer": {
        "description": "one value per layer, in order",
        **closed({"per_layer": {"description": "the values: numbers, words or booleans", **_EACH}}),
        "minProperties": 1,
    },
}
# slots within a layer, whose options may be set `per_layer`
LAYERED = {key.kind.slot for key in LAYER.values() if isinstance(key.kind, PartValue | PartsValue | NormValue)}
LAYERED.add("activation")
TYPES = {"boolean", "integer", "number", "string"}
# keywords copied from Pydantic's schema
BOUNDS = {
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "minItems",
    "maxItems", "minProperties", "maxProperties",
}  # fmt: skip


def parts_of(slot: str) -> dict[str, Schema]:
    """Return the definitions for a slot: the slot, each part's options, and `any.SLOT`, the union of all options."""
    definitions: dict[str, Schema] = {}
    every: dict[str, dict[str, Schema]] = {}
    texts = {name: summary_of(part) for name, part in sorted(REGISTRY.load(slot).items())}
    for name, text in texts.items():
        own = options(REGISTRY.get(slot, name).Config, f"{slot}.{name}", slot in LAYERED)
        mapping = own[f"{slot}.{name}"]
        for option, schema in mapping["properties"].items():
            every.setdefault(option, {})[name] = schema
        mapping["properties"] = {"type": {"description": text, "const": name}, **mapping["properties"]}
        definitions |= {**own, f"{slot}.{name}": {**mapping, "description": text}}
    definitions[f"any.{slot}"] = closed({"type": {}, **{option: _merged(every[option]) for option in sorted(every)}})
    # the value of the slot: the name of a part, or a mapping with options
    word = {"enum": list(texts), "enumDescriptions": list(texts.values())}
    kind = {"description": f"type of {slot}", **either(word, *[PER_LAYER] * (slot in LAYERED))}
    each = [{"if": _of_type(name), "then": refer(f"{slot}.{name}")} for name in texts]
    untyped = {"if": _of_type(*texts), "else": refer(f"any.{slot}")}
    of_slot = {"properties": {"type": kind}, "allOf": [*each, untyped]}
    definitions[slot] = {"anyOf": [word, {"type": "object"}], "if": {"type": "object"}, "then": of_slot}
    return definitions


def _of_type(*names: str) -> Schema:
    return {"properties": {"type": {"enum": list(names)}}, "required": ["type"]}


def _merged(schemas: dict[str, Schema]) -> Schema:
    """Merge the schemas of an option that several parts have."""
    texts = {name: schema.get("description", "") for name, schema in schemas.items()}
    same = len(set(texts.values())) == 1
    text = next(iter(texts.values())) if same else "; ".join(f"{name}: {text}" for name, text in texts.items())
    bare = [{key: one[key] for key in one if key not in ("description", "default")} for one in schemas.values()]
    return {"description": text, **either(*bare)}


def summary_of(part: type[Component]) -> str:
    """Return the first paragraph of a part's docstring: its equation and its paper."""
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())


class _Generator(GenerateJsonSchema):
    """Pydantic's schema generator, made permissive so that valid recipes are never rejected.

    A part's own before or wrap validator may accept any input unless it declares `json_schema_input_type`.
    """

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_wrap_schema(schema))

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: object, detail: str) -> None:
        """Suppress warnings about defaults that cannot be serialized."""

    def _loosened(self, schema: Any, result: JsonSchemaValue) -> JsonSchemaValue:
        own = getattr(schema["function"]["function"], "__module__", "").startswith("tfkit.")
        if own or schema.get("json_schema_input_schema") or "x-slot" in result:
            return result
        return result | {"additionalProperties": True} if "properties" in result else {}


def options(model: type[BaseModel], owner: str, layered: bool = False) -> dict[str, Schema]:
    """Return the definition `owner` for the options of `model`, and the definitions of nested mappings.

    If `layered`, options may be set `per_layer`.
    """
    schema = model.model_json_schema(schema_generator=_Generator)
    nested = schema.pop("$defs", {})
    reader = _Reader(owner, nested, [PER_LAYER] * layered)
    return {owner: reader.mapping(schema)} | {f"{owner}.{name}": reader.value(one) for name, one in nested.items()}


class _Reader:
    """Translator from Pydantic's JSON Schema to that of recipes."""

    def __init__(self, owner: str, nested: dict[str, Schema], varied: list[Schema]) -> None:
        self.owner = owner
        self.nested = nested
        self.varied = varied

    def mapping(self, source: Schema) -> Schema:
        others = source.get("additionalProperties", "properties" not in source)
        schema = closed({name: self._option(one) for name, one in source.get("properties", {}).items()})
        schema["additionalProperties"] = others if isinstance(others, bool) else self.value(others)
        return ({"description": source["description"]} if "description" in source else {}) | schema

    def _option(self, source: Schema) -> Schema:
        """Translate an option with its description and default; a norm's default is omitted: it is the stack's norm."""
        text, schema, default = source.get("description", ""), self.value(source), source.get("default")
        members = [source, *source.get("anyOf", ())]
        of_stack = default is not None and any(member.get("x-slot") == "norm" for member in members)
        # a default that fits on one line: a number, a word, none, or a list of them
        items = default if isinstance(default, list) else [default]
        plain = all(item is None or isinstance(item, (bool, int, float, str)) for item in items)
        if "default" in source and plain and not of_stack:
            text = f"{text.rstrip('.')}. Default: {inline(default)}.".removeprefix(". ")
            schema = {"default": "none" if default is None else default, **schema}
        return ({"description": text} if text else {}) | schema

    def value(self, source: Schema) -> Schema:
        if union := source.get("anyOf", source.get("oneOf")):
            return either(*map(self.value, union))
        if "x-slot" in source:
            return either(refer(source["x-slot"]), *[TRUE] * (source["x-slot"] == "norm"), *self.varied)
        if "$ref" in source:  # a nested mapping; like a part, it may be abbreviated to its type
            name = source["$ref"].rpartition("/")[2]
            words = _words(self.nested[name].get("properties", {}).get("type", {}))
            return either(refer(f"{self.owner}.{name}"), *[{"enum": words}] * bool(words))
        if words := _words(source):
            return either({"enum": words}, *self.varied)
        kind, bounds = source.get("type"), {key: value for key, value in source.items() if key in BOUNDS}
        if kind == "object":
            return self.mapping(source) | bounds
        if kind == "array":
            items = source["prefixItems"] if "prefixItems" in source else [source.get("items", {})]
            return {"type": "array", "items": either(*map(self.value, items)), **bounds}
        if kind == "null":
            return either(NONE, *self.varied)
        if kind not in TYPES:
            return ANYTHING
        plain = number(kind, **bounds) if kind in ("integer", "number") else {"type": kind, **bounds}
        return either(plain, *self.varied)


def _words(source: Schema) -> list[object]:
    words = source.get("enum", [source["const"]] if "const" in source else [])
    return ["none" if word is None else word for word in words]


IN_STACK = r"model\.((encoder|decoder)\.)?"
IN_LAYER = rf"{IN_STACK}(layer|layers\.[^.]+)\."
NESTED = {"section.model", "section.stack", "section.layer", "section.layers"}  # covered by the patterns above
ANY_KEY = ".+"


class VariantKeys:
    """Generator of patterns for the dotted keys of variants, with the schemas of their values."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self.definitions = definitions

    def schema(self, sections: Mapping[str, Schema]) -> Schema:
        """Return the schema of `variants:`; every key also accepts a list of values (an axis)."""
        model, stack, kinds, layer = (
            self._children(f"section.{name}") for name in ("model", "stack", "layers", "layer")
        )
        own = {key: value for key, value in model.items() if key not in stack}
        inner = ((r"model\.", own), (IN_STACK, stack), (rf"{IN_STACK}layers\.", kinds), (IN_LAYER, layer))
        keys = [pair for prefix, group in (*inner, ("", sections)) for pair in self._paths(prefix, group)]
        axes = {key: either(value, many(value)) for key, value in sections.items()}
        return named({**closed(axes), "patternProperties": {f"^{key}$": either(one, many(one)) for key, one in keys}})

    def _paths(
        self, prefix: str, keys: Mapping[str, Schema], above: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, Schema]]:
        """Yield patterns for the dotted keys below `prefix`; keys with the same definition share a pattern."""
        same_definition: dict[str, list[str]] = {}
        for key, value in keys.items():
            yield prefix + key, value
            for name in self._mappings(value):
                same_definition.setdefault(name, []).append(key)
        for name, same in same_definition.items():
            below = prefix + (same[0] if len(same) == 1 else f"({'|'.join(same)})") + r"\."
            if name in above:  # a recursive definition
                yield below + ANY_KEY, {}
            else:
                yield from self._paths(below, self._children(name), above | {name})

    def _children(self, name: str) -> dict[str, Schema]:
        """Return the keys of a definition as regular expressions, with their schemas."""
        mapping = self.definitions[name]
        others = mapping["additionalProperties"]
        children = {
            re.escape(key): value and refer(f"{name}/properties/{key}") for key, value in mapping["properties"].items()
        }
        children |= {pattern[1:-1]: value for pattern, value in mapping.get("patternProperties", {}).items()}
        return children | ({"[^.]+": others} if isinstance(others, dict) else {ANY_KEY: {}} if others else {})

    def _mappings(self, schema: Schema) -> Iterator[str]:
        """Yield the mapping definitions that a value may refer to; for a part, the one with all options of its slot."""
        for one in schema.get("anyOf", [schema]):
            name, _, option = one.get("$ref", "").removeprefix(REFERENCE).partition("/properties/")
            if option:
                yield from self._mappings(self.definitions[name]["properties"][option])
            name = f"any.{name}" if f"any.{name}" in self.definitions else name
            if not option and "properties" in self.definitions.get(name, {}) and name not in (*NESTED, "per_layer"):
                yield name


DRAFT = "http://json-schema.org/draft-07/schema#"
SECTIONS: dict[str, type[BaseModel]] = {
    "data": Data,
    "train": Train,
    "generate": Generate,
    **{key: page.SCHEMA for key, page in LEAVES.items()},
}
NUMBERED = "_([2-9]|[1-9][0-9]+)"  # suffix of repeated sublayers: feedforward_2
LETTER = r"[^\s!-/:-@\[-^`{-~]"  # no whitespace or punctuation except _
ENTRY: Schema = {
    "type": "string",
    "pattern": rf"^{LETTER}+(\+{LETTER}+)*(\*0*[1-9][0-9]*)?$",
    "patternErrorMessage": "expected a kind, such as local, local*3 or global+first",
}
HEAD_NAME: Schema = {
    "pattern": rf"^(?![0-9]){LETTER}+$",
    "patternErrorMessage": "expected a plain word as the head's name",
}
PATH: Schema = {"type": "string"}
# keys whose schema does not follow from their kind
OWN: dict[str, Schema] = {
    "tfkit": {"enum": [LANGUAGE]},
    "extends": PATH,
    "model": refer("section.model"),
    "objective": either(refer("objective"), NONE),
    "imports": either(PATH, many(PATH), NONE),
    **dict.fromkeys(("encoder", "decoder"), either(refer("section.stack"), NONE)),
    "memory": either(refer("section.memory"), {"const": LAST_STATE}, NONE),
    "layer": refer("section.layer"),
    "pattern": either(many(either(ENTRY, many(ENTRY, minItems=1)), minItems=1), NONE),
    "sublayers": either(many(either({"enum": list(SUBLAYERS)}, PER_LAYER), minItems=1), NONE),
}
for _key in (*SECTIONS, "variants", "heads", "parametrization", "special_ids", "layers"):
    OWN[_key] = either(refer(f"section.{_key}"), NONE)


def language_schema() -> Schema:
    """Return the JSON Schema (draft 7) of recipes with all registered parts, in deterministic order.

    It describes data as parsed by YAML 1.2, in which `none` is a string and an empty value is null. Each part, section
    and stack has one definition, which covers keys, words, types and bounds. Missing keys and constraints between
    values (divisibility, contradictions) are left to `tfkit check`.
    """
    definitions = {**SHARED, **_model()}
    for slot in CATALOGUES:
        definitions |= parts_of(slot)
    for name, section in SECTIONS.items():
        definitions |= options(section, f"section.{name}")
    top = _declared(TOP)
    sections = {key: value for key, value in top.items() if key not in ("extends", "variants")}
    definitions["section.variants"] = VariantKeys(definitions).schema(sections)
    return {
        "$schema": DRAFT,
        "$id": f"urn:tfkit:recipe:{LANGUAGE}",
        "version": LANGUAGE,
        "title": "tfkit recipe",
        "description": "a Transformer and its training; run `tfkit check` for faults that involve several values",
        **closed(top),
        "anyOf": [{"required": ["tfkit"]}, {"required": ["extends"]}],
        "definitions": dict(sorted(definitions.items())),
    }


def _model() -> dict[str, Schema]:
    """Return the definitions of `model:` (rules R1 to R15)."""
    stack, model, layer = _declared(STACK), _declared(MODEL), closed(_declared(LAYER, PER_LAYER))
    size, width = number("integer", minimum=0), number("integer", minimum=1, maximum=bounds.WIDTH.most)
    base: Schema = {
        "description": "base model of muP, as the sizes that differ from this model, such as d_model: 64",
        "type": "object",
        "additionalProperties": width,
        "minProperties": 1,
    }
    exponent: Schema = {
        "description": "residual branches are scaled by depth ** -exponent (CompleteP: 1)",
        "type": "number",
        "minimum": 0.5,
        "maximum": 1,
    }
    again: dict[str, Schema] = {}  # repeated sublayers: feedforward_2
    for name in SUBLAYERS:
        part, norm = _value(LAYER[name].kind), _value(LAYER[f"{name}_norm"].kind)
        again[f"^{name}{NUMBERED}$"] = {"description": f"another {name} sublayer, merged over {name}", **part}
        again[f"^{name}{NUMBERED}_norm$"] = {"description": f"the norm of this {name} sublayer", **norm}
    return {
        "section.model": closed({"type": model.pop("type"), **stack, **model}),
        "section.stack": closed(stack),
        "section.layer": {**layer, "patternProperties": again},
        "section.layers": named(refer("section.layer")),
        "section.heads": named(refer("head"), propertyNames=HEAD_NAME),
        "section.memory": closed({"d_model": {"description": "width of the memory", **width}}),
        "section.parametrization": closed({"type": {"const": "mup"}, "base": base, "depth_exponent": exponent}),
        "section.special_ids": closed({name: {"description": f"id of the {name} token", **size} for name in SPECIAL}),
    }


def _declared(keys: Mapping[str, Key], *varied: Schema) -> dict[str, Schema]:
    """Return the schema of each key with its description."""
    values = {name: OWN[name] if name in OWN else _value(key.kind, *varied) for name, key in keys.items()}
    return {name: {"description": key.sentence, **values[name]} for name, key in keys.items()}


def _value(kind: Kind, *varied: Schema) -> Schema:
    """Return the schema of a kind of value; `varied` are alternatives to a number or a list item."""
    match kind:
        case SizeValue():
            size = number("integer", minimum=1, maximum=kind.limit)
            return either(size, *[{"enum": list(kind.words)}] * bool(kind.words), *[NONE] * (not kind.needed))
        case RateValue():
            return either(number("number", minimum=0, exclusiveMaximum=1), *varied, NONE)
        case FlagValue():
            return either({"type": "boolean"}, NONE)
        case PartValue():
            return either(refer(kind.slot), *[NONE] * (not kind.needed))
        case PartsValue():
            return either(refer(kind.slot), many(either(refer(kind.slot), *varied)), NONE)
        case NormValue():
            return either(refer("norm"), TRUE, NONE)
    raise TypeError(f"{kind} has a special schema")
