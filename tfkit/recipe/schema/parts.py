"""Schemas of parts: the names in a slot and the options of each, as completed after `attention: {type: `."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tfkit.core.component import Component
from tfkit.core.keys import NormValue, PartsValue, PartValue
from tfkit.core.registry import REGISTRY
from tfkit.recipe.keys import LAYER
from tfkit.recipe.schema.values import ANYTHING, NONE, PER_LAYER, TRUE, Schema, closed, either, number, refer
from tfkit.recipe.text.node import inline

# slots within a layer, whose values may be `per_layer`
LAYERED = {key.kind.slot for key in LAYER.values() if isinstance(key.kind, PartValue | PartsValue | NormValue)}
LAYERED.add("activation")
TYPES = {"boolean", "integer", "number", "string"}
# keywords copied from Pydantic's schema
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern"}
BOUNDS |= {"minItems", "maxItems", "minProperties", "maxProperties"}


def parts_of(slot: str) -> dict[str, Schema]:
    """Return the definitions of a slot: itself, each part's options, and `any.slot` with the options of all."""
    made: dict[str, Schema] = {}
    every: dict[str, dict[str, Schema]] = {}
    texts = {name: summary_of(part) for name, part in sorted(REGISTRY.load(slot).items())}
    for name, text in texts.items():
        own = options(REGISTRY.get(slot, name).Config, f"{slot}.{name}", slot in LAYERED)
        mapping = own[f"{slot}.{name}"]
        for option, schema in mapping["properties"].items():
            every.setdefault(option, {})[name] = schema
        mapping["properties"] = {"type": {"description": text, "const": name}, **mapping["properties"]}
        made |= {**own, f"{slot}.{name}": {**mapping, "description": text}}
    made[f"any.{slot}"] = closed({"type": {}, **{option: _merged(every[option]) for option in sorted(every)}})
    return made | {slot: _part(slot, texts)}


def _part(slot: str, texts: dict[str, str]) -> Schema:
    """Schema of a part: its name, or a mapping with options."""
    word = {"enum": list(texts), "enumDescriptions": list(texts.values())}
    kind = {"description": f"which {slot}", **either(word, *[PER_LAYER] * (slot in LAYERED))}
    each = [{"if": _of_type(name), "then": refer(f"{slot}.{name}")} for name in texts]
    untyped = {"if": _of_type(*texts), "else": refer(f"any.{slot}")}
    mapping = {"properties": {"type": kind}, "allOf": [*each, untyped]}
    return {"anyOf": [word, {"type": "object"}], "if": {"type": "object"}, "then": mapping}


def _of_type(*names: str) -> Schema:
    """Schema of mappings with one of these types."""
    return {"properties": {"type": {"enum": list(names)}}, "required": ["type"]}


def _merged(schemas: dict[str, Schema]) -> Schema:
    """Merge one option of several parts."""
    texts = {name: schema.get("description", "") for name, schema in schemas.items()}
    same = len(set(texts.values())) == 1
    text = next(iter(texts.values())) if same else "; ".join(f"{name}: {text}" for name, text in texts.items())
    bare = [{key: one[key] for key in one if key not in ("description", "default")} for one in schemas.values()]
    return {"description": text, **either(*bare)}


def summary_of(part: type[Component]) -> str:
    """Return the first paragraph of a part's docstring: its equation and its paper."""
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, permissive where types are insufficient, so that valid recipes are never rejected.

    A user's before or wrap validator may accept any input, unless it declares `json_schema_input_type`.
    """

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_wrap_schema(schema))

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore defaults that cannot be serialized."""

    def _loosened(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        ours = getattr(schema["function"]["function"], "__module__", "").startswith("tfkit.")
        if ours or schema.get("json_schema_input_schema") or "x-slot" in found:
            return found
        return found | {"additionalProperties": True} if "properties" in found else {}


def options(model: type[BaseModel], owner: str, layered: bool = False) -> dict[str, Schema]:
    """Return the definition `owner` of the mapping validated by `model`, and those of nested mappings.

    With `layered`, `per_layer` may replace a value.
    """
    found = model.model_json_schema(schema_generator=_Generator)
    nested = found.pop("$defs", {})
    reader = _Reader(owner, nested, [PER_LAYER] * layered)
    return {owner: reader.mapping(found)} | {f"{owner}.{name}": reader.value(one) for name, one in nested.items()}


class _Reader:
    """Translator of Pydantic's schemas."""

    def __init__(self, owner: str, nested: dict[str, Schema], varied: list[Schema]) -> None:
        self.owner = owner
        self.nested = nested
        self.varied = varied

    def mapping(self, found: Schema) -> Schema:
        """Return the schema of a mapping with options."""
        others = found.get("additionalProperties", "properties" not in found)
        schema = closed({name: self._option(one) for name, one in found.get("properties", {}).items()})
        schema["additionalProperties"] = others if isinstance(others, bool) else self.value(others)
        return ({"description": found["description"]} if "description" in found else {}) | schema

    def _option(self, found: Schema) -> Schema:
        """Return an option with description and default; a norm has no default, since it follows the stack's."""
        text, schema, default = found.get("description", ""), self.value(found), found.get("default")
        members = [found, *found.get("anyOf", ())]
        of_stack = default is not None and any(member.get("x-slot") == "norm" for member in members)
        if "default" in found and _plain(default) and not of_stack:
            text = f"{text.rstrip('.')}. Default: {inline(default)}.".removeprefix(". ")
            schema = {"default": "none" if default is None else default, **schema}
        return ({"description": text} if text else {}) | schema

    def value(self, found: Schema) -> Schema:
        """Return the schema of a value."""
        if union := found.get("anyOf", found.get("oneOf")):
            return either(*map(self.value, union))
        if "x-slot" in found:
            return either(refer(found["x-slot"]), *[TRUE] * (found["x-slot"] == "norm"), *self.varied)
        if "$ref" in found:  # a nested mapping, which may be abbreviated to its type, as a part to its name
            name = found["$ref"].rpartition("/")[2]
            words = _words(self.nested[name].get("properties", {}).get("type", {}))
            return either(refer(f"{self.owner}.{name}"), *[{"enum": words}] * bool(words))
        if words := _words(found):
            return either({"enum": words}, *self.varied)
        return self._typed(found, found.get("type"))

    def _typed(self, found: Schema, kind: Any) -> Schema:
        bounds = {key: value for key, value in found.items() if key in BOUNDS}
        if kind == "object":
            return self.mapping(found) | bounds
        if kind == "array":
            items = found["prefixItems"] if "prefixItems" in found else [found.get("items", {})]
            return {"type": "array", "items": either(*map(self.value, items)), **bounds}
        if kind == "null":
            return either(NONE, *self.varied)
        if kind not in TYPES:
            return ANYTHING
        plain = number(kind, **bounds) if kind in ("integer", "number") else {"type": kind, **bounds}
        return either(plain, *self.varied)


def _words(found: Schema) -> list[Any]:
    """Return the allowed words."""
    return [
        "none" if word is None else word for word in found.get("enum", [found[key] for key in found if key == "const"])
    ]


def _plain(value: Any) -> bool:
    """True if a default fits on one line: a number, a word, none, or a list of them."""
    items = value if isinstance(value, list) else [value]
    return all(item is None or isinstance(item, (bool, int, float, str)) for item in items)
