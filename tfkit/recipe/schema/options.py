"""The options of a part, or of a section: Pydantic's JSON Schema, in the words of the recipe language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tfkit.recipe.schema.values import (
    ANYTHING,
    FLAG,
    NONE,
    TRUE,
    Definitions,
    Form,
    Schema,
    closed,
    either,
    number,
    varied,
)
from tfkit.recipe.text.node import inline

# the keywords of Pydantic's schema that mean the same in the language's
KEPT = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


class _Generator(GenerateJsonSchema):
    """Pydantic's schema, where what cannot be known from types is left open, so that nothing right is ever refused.

    A validator of the user's that runs before the types may take anything, unless it says its `json_schema_input_type`.
    """

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return self._loosened(schema, super().function_wrap_schema(schema))

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """A default that cannot be written is left out."""

    def _loosened(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        function = schema["function"]["function"]
        ours = getattr(function, "__module__", "").startswith("tfkit.")
        if ours or schema.get("json_schema_input_schema") or "x-slot" in found:
            return found
        if "properties" in found:
            return {key: value for key, value in found.items() if key != "required"} | {"additionalProperties": True}
        return {}


class Options:
    """Turns the options of Pydantic models into schemas; `part` gives the schema of a slot's parts."""

    def __init__(self, definitions: Definitions, part: Callable[[str, Form, str], Schema]) -> None:
        self.definitions = definitions
        self.part = part

    def mapping(self, model: type[BaseModel], owner: str, form: Form, beside: Schema | None = None) -> Schema:
        """The mapping that `model` validates, with the options `beside` before its own.

        `owner` begins the names of the definitions within it.
        """
        found = model.model_json_schema(schema_generator=_Generator)
        return _Reader(self, found.get("$defs", {}), owner, form).mapping(found, beside)


class _Reader:
    """Reads one schema of Pydantic's."""

    def __init__(self, options: Options, nested: Mapping[str, Schema], owner: str, form: Form) -> None:
        self.options = options
        self.nested = nested
        self.owner = owner
        self.form = form

    def mapping(self, found: Schema, beside: Schema | None = None) -> Schema:
        """A mapping with options."""
        own = {name: self._option(one) for name, one in found.get("properties", {}).items()}
        properties = (beside or {}) | own
        required = [] if self.form.overlay else found.get("required", [])
        schema = closed(properties, required) | {"additionalProperties": self._others(found)}
        text = {"description": found["description"]} if "description" in found else {}
        return text | schema

    def _option(self, found: Schema) -> Schema:
        """An option with its description and its default."""
        text, schema = found.get("description", ""), either(*self._alternatives(found))
        if "default" in found and _plain(found["default"]) and not _is_stack_norm(found):
            default = "none" if found["default"] is None else found["default"]
            text = f"{text.rstrip('.')}. Default: {inline(found['default'])}.".removeprefix(". ")
            schema = {"default": default, **schema}
        return ({"description": text} if text else {}) | schema

    def _alternatives(self, found: Schema) -> list[Schema]:
        """The ways to write a value."""
        for union in ("anyOf", "oneOf"):
            if union in found:
                return [one for member in found[union] for one in self._alternatives(member)]
        if "x-slot" in found:
            return self._part(found["x-slot"], found.get("default"))
        if "$ref" in found:
            return self._nested(found["$ref"].rpartition("/")[2])
        if "enum" in found or "const" in found:
            words = found.get("enum", [found.get("const")])
            return [{"enum": ["none" if word is None else word for word in words]}, *varied(self.form)]
        return self._typed(found, found.get("type"))

    def _typed(self, found: Schema, kind: Any) -> list[Schema]:
        if kind == "null":
            return [NONE, *varied(self.form)]
        if kind not in (*KEPT, "boolean"):
            return [ANYTHING]
        kept = {key: found[key] for key in KEPT.get(kind, ()) if key in found}
        if kind in ("integer", "number"):
            return number(kind, self.form, **kept)
        if kind == "array":
            return [{"type": "array", **self._items(found), **kept}]
        if kind == "object":
            return [self.mapping(found) | kept]
        return [FLAG if kind == "boolean" else {"type": kind, **kept}, *varied(self.form)]

    def _items(self, found: Schema) -> Schema:
        if "prefixItems" in found:
            return {"items": [either(*self._alternatives(item)) for item in found["prefixItems"]]}
        return {"items": either(*self._alternatives(found["items"]))} if found.get("items") else {}

    def _others(self, found: Schema) -> Any:
        """What keys without a name of their own may hold."""
        others = found.get("additionalProperties", "properties" not in found)
        return others if isinstance(others, bool) else either(*self._alternatives(others))

    def _part(self, slot: str, default: Any) -> list[Schema]:
        if slot == "norm":  # laid over the stack's (R12)
            return [self.options.part(slot, self.form.over(), ""), TRUE, *varied(self.form)]
        return [self.options.part(slot, self.form, default if isinstance(default, str) else ""), *varied(self.form)]

    def _nested(self, name: str) -> list[Schema]:
        """A mapping within a part. In an overlay its type may stand for it, as a part's name does."""
        found = self.nested[name]
        if "properties" not in found:
            return self._alternatives(found)
        schema = self.options.definitions.ref(f"{self.owner}.{name}{self.form.suffix}", lambda: self.mapping(found))
        kind = found["properties"].get("type", {})
        words = kind.get("enum", [kind["const"]] if "const" in kind else [])
        return [schema, *([{"enum": words}] if self.form.overlay and words else [])]


def _plain(value: Any) -> bool:
    """Whether a default can be written on one line: a number, a word, none, or a list of them."""
    if isinstance(value, list):
        return all(_plain(item) and not isinstance(item, list) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _is_stack_norm(found: Schema) -> bool:
    """Whether an option is a norm that is the stack's where a recipe does not say it (R12)."""
    members = [found, *found.get("anyOf", ())]
    return found["default"] is not None and any(member.get("x-slot") == "norm" for member in members)
