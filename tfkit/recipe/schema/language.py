"""Schema of a whole recipe: sections, `model:` with stacks and layers, and composition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from tfkit.core import bounds
from tfkit.core.keys import FlagValue, Key, Kind, NormValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.core.registry import CATALOGUES
from tfkit.recipe.architecture.heads import SPECIAL
from tfkit.recipe.architecture.sizes import LAST_STATE
from tfkit.recipe.keys import LAYER, MODEL, STACK, SUBLAYERS, TOP
from tfkit.recipe.schema.parts import options, parts_of
from tfkit.recipe.schema.values import (
    NONE,
    PER_LAYER,
    SHARED,
    TRUE,
    Schema,
    closed,
    either,
    many,
    named,
    number,
    refer,
)
from tfkit.recipe.schema.variants import VariantKeys
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.settings.study import Study
from tfkit.recipe.text.source import LANGUAGE

DRAFT = "http://json-schema.org/draft-07/schema#"
SECTIONS: dict[str, type[BaseModel]] = {"data": Data, "train": Train, "generate": Generate, "study": Study}
NUMBERED = "_([2-9]|[1-9][0-9]+)"  # suffix of repeated sublayers: feedforward_2
LETTER = r"[^\s!-/:-@\[-^`{-~]"  # no whitespace or punctuation except _
ENTRY: Schema = {
    "type": "string",
    "pattern": rf"^{LETTER}+(\+{LETTER}+)*(\*0*[1-9][0-9]*)?$",
    "patternErrorMessage": "an entry of a pattern is a kind, such as local, local*3 or global+first",
}
HEAD_NAME: Schema = {"pattern": rf"^(?![0-9]){LETTER}+$", "patternErrorMessage": "a head's name is a plain word"}
PATH: Schema = {"type": "string"}
# keys with a special schema
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
OWN |= {
    key: either(refer(f"section.{key}"), NONE)
    for key in (*SECTIONS, "variants", "heads", "parametrization", "special_ids", "layers")
}


def language_schema() -> Schema:
    """Return the JSON Schema (draft 7) of recipes with all registered parts, in deterministic order.

    It describes data as parsed by YAML 1.2, where `none` is a word and an empty value is null. Parts, sections and
    stacks have one definition each, which covers keys, words, types and bounds. Missing keys and constraints across
    the model (divisibility, contradictions) are left to `tfkit check`.
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
        "title": "tfkit recipe",
        "description": "a Transformer, and how it is trained; `tfkit check` finds what only the whole model shows",
        **closed(top),
        "anyOf": [{"required": ["tfkit"]}, {"required": ["extends"]}],
        "definitions": dict(sorted(definitions.items())),
    }


def _model() -> dict[str, Schema]:
    """Define `model:` (rules R1 to R15)."""
    stack, model = _declared(STACK), _declared(MODEL)
    size, width = number("integer", minimum=0), number("integer", minimum=1, maximum=bounds.WIDTH.most)
    base: Schema = {"description": "sizes by key of model, at which nothing is changed: d_model: 64", "type": "object"}
    base |= {"additionalProperties": width, "minProperties": 1}
    exponent: Schema = {"description": "branches shrink with layers to this power (CompleteP: 1)", "type": "number"}
    exponent |= {"minimum": 0.5, "maximum": 1}
    return {
        "section.model": closed({"type": model.pop("type"), **stack, **model}),
        "section.stack": closed(stack),
        "section.layer": {**closed(_declared(LAYER, PER_LAYER)), "patternProperties": dict(_again())},
        "section.layers": named(refer("section.layer")),
        "section.heads": named(refer("head"), propertyNames=HEAD_NAME),
        "section.memory": closed({"d_model": {"description": "width of the memory", **width}}),
        "section.parametrization": closed({"type": {"const": "mup"}, "base": base, "depth_exponent": exponent}),
        "section.special_ids": closed({name: {"description": f"id of the {name} token", **size} for name in SPECIAL}),
    }


def _again() -> Iterator[tuple[str, Schema]]:
    """Yield the keys of repeated sublayers (feedforward_2)."""
    for name in SUBLAYERS:
        part, norm = _value(LAYER[name].kind), _value(LAYER[f"{name}_norm"].kind)
        yield f"^{name}{NUMBERED}$", {"description": f"{name} once more, laid over {name}", **part}
        yield f"^{name}{NUMBERED}_norm$", {"description": f"the norm of that {name} alone", **norm}


def _declared(keys: Mapping[str, Key], *varied: Schema) -> dict[str, Schema]:
    """Map keys to described schemas."""
    values = {name: OWN[name] if name in OWN else _value(key.kind, *varied) for name, key in keys.items()}
    return {name: {"description": key.sentence, **values[name]} for name, key in keys.items()}


def _value(kind: Kind, *varied: Schema) -> Schema:
    """Return the schema of a kind of value; `varied` may replace a number or list item."""
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
    raise TypeError(f"{kind} has a schema of its own")
