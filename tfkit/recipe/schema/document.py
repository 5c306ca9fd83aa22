"""The whole recipe: its sections, and how one is put together (`extends`, `variants`, `imports`)."""

from __future__ import annotations

from pydantic import BaseModel

from tfkit.recipe.keys import LANGUAGE, TOP
from tfkit.recipe.schema.model import ModelSchema
from tfkit.recipe.schema.parts import Parts
from tfkit.recipe.schema.values import (
    NONE,
    OVERLAY,
    WHOLE,
    Definitions,
    Form,
    Schema,
    closed,
    described,
    either,
    one_or_many,
    unless_misspelt,
)
from tfkit.recipe.schema.variants import VariantKeys
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.settings.study import Study

DRAFT = "http://json-schema.org/draft-07/schema#"
SECTIONS: dict[str, type[BaseModel]] = {"data": Data, "train": Train, "generate": Generate, "study": Study}


def language_schema() -> Schema:
    """The JSON Schema (draft 7) of a recipe, with every part that is registered now; the same parts give the same text.

    It is of data as YAML 1.2 reads it, where `none` is a word and an empty value is null. It knows words, types and
    bounds; what only the whole model shows (sizes that do not divide, contradictions) `tfkit check` finds.
    """
    return Document().schema()


class Document:
    """Makes the schema."""

    def __init__(self) -> None:
        self.definitions = Definitions()
        self.parts = Parts(self.definitions)
        self.model = ModelSchema(self.parts)

    def schema(self) -> Schema:
        """The whole."""
        composed = {"anyOf": [{"required": ["extends"]}, {"required": ["variants"]}]}
        overlay = self.definitions.ref("section.recipe_overlay", lambda: self._recipe(OVERLAY))
        whole = self.definitions.ref("section.recipe", lambda: self._recipe(WHOLE))
        schema = {
            "$schema": DRAFT,
            "title": "tfkit recipe",
            "description": "a Transformer, and how it is trained; `tfkit check` finds what only the whole model shows",
            "type": "object",
            "if": composed,
            "then": overlay,
            "else": whole,
        }
        return self.definitions.without_twins(schema)

    def _recipe(self, form: Form) -> Schema:
        """The sections of a recipe that is whole, or laid over others by `extends` and `variants`."""
        values = {
            **self._sections(form),
            "extends": {"type": "string"},
            "variants": either(self._variants(), NONE),
        }
        properties = {key: described(declared.sentence, values[key]) for key, declared in TOP.items()}
        alone = unless_misspelt(properties, {"required": ["tfkit", "model"]})
        return closed(properties) | {"if": {"required": ["extends"]}, "else": alone}

    def _sections(self, form: Form) -> dict[str, Schema]:
        """What a recipe says, and what a variant may lay over it."""
        return {
            "tfkit": {"enum": [LANGUAGE]},
            "model": self.model.overlay() if form.overlay else self.model.whole(),
            "objective": either(self.parts.part("objective", form), NONE),
            **{name: either(self._section(name, form), NONE) for name in SECTIONS},
            "imports": either(*one_or_many({"type": "string"}, {"type": "string"}), NONE),
        }

    def _variants(self) -> Schema:
        sections = self._sections(OVERLAY)
        return self.definitions.ref("section.variants", lambda: VariantKeys(self.definitions, sections).schema())

    def _section(self, name: str, form: Form) -> Schema:
        options = self.parts.options
        return self.definitions.ref(f"section.{name}{form.suffix}", lambda: options.mapping(SECTIONS[name], name, form))
