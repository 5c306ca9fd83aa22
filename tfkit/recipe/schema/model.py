"""`model:` and its stacks (rules R1, R3, R7 to R10, R12, R14 and R15)."""

from __future__ import annotations

from tfkit.core import bounds
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import ModelFacts
from tfkit.recipe.architecture.heads import SPECIAL
from tfkit.recipe.architecture.sizes import LAST_STATE
from tfkit.recipe.keys import MODEL, STACK
from tfkit.recipe.schema.declared import declared
from tfkit.recipe.schema.layers import layer
from tfkit.recipe.schema.parts import Parts, of_type
from tfkit.recipe.schema.values import (
    NONE,
    OVERLAY,
    WHOLE,
    Form,
    Schema,
    closed,
    described,
    either,
    number,
    unless_misspelt,
)

SIDES = ("encoder", "decoder")
DEPTH_KEYS = ("num_layers", "pattern")
# what is made of parts: a side that says one of these may complete what `model` says of it
OF_PARTS = ("embedding", "position", "mask", "layer", "layers", "final_norm")

EXPONENTS = {"minimum": 0.5, "maximum": 1}
WIDTH = {"minimum": 1, "maximum": bounds.WIDTH.most}
LETTER = r"[^\s!-/:-@\[-^`{-~]"  # of a word: no space and no punctuation but _
ENTRY: Schema = {
    "type": "string",
    "pattern": rf"^{LETTER}+(\+{LETTER}+)*(\*0*[1-9][0-9]*)?$",
    "patternErrorMessage": "an entry of a pattern is a kind, such as local, local*3 or global+first",
}
HEAD_NAME: Schema = {"pattern": rf"^(?![0-9]){LETTER}+$", "patternErrorMessage": "a head's name is a plain word"}


class ModelSchema:
    """The schemas of `model:`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.definitions = parts.definitions
        sides = {name: part.sides for name, part in REGISTRY.load("model").items() if issubclass(part, ModelFacts)}
        self.single = sorted(name for name, found in sides.items() if len(found) == 1)
        self.paired = sorted(name for name, found in sides.items() if len(found) == 2)

    def whole(self) -> Schema:
        """A model all of whose keys stand here; where a side names parts, `model` need not be complete."""
        says_parts = [
            {"properties": {side: {"anyOf": [{"required": [key]} for key in OF_PARTS]}}, "required": [side]}
            for side in SIDES
        ]
        whole = self.definitions.ref("section.model", lambda: self._whole(WHOLE))
        split = self.definitions.ref("section.model_of_two_texts", lambda: self._whole(OVERLAY))
        return {"type": "object", "if": {"anyOf": says_parts}, "then": split, "else": whole}

    def overlay(self) -> Schema:
        """A model laid over another."""
        return self.definitions.ref("section.model_overlay", lambda: closed(self._properties(OVERLAY, OVERLAY)))

    def _whole(self, stack: Form) -> Schema:
        """A model with a type, whose own stack keys are in the form `stack`."""
        properties = self._properties(WHOLE, stack)
        rules = [self._of_one(properties), self._of_two(properties)]
        if not stack.overlay:
            # where there are kinds, what stands in `layer` may be complete only together with them
            with_kinds, alone = ({"properties": {"layer": layer(self.parts, form)}} for form in (OVERLAY, WHOLE))
            properties["layer"] = described(STACK["layer"].sentence, {"type": "object"})
            rules.append({"if": {"required": ["layers"]}, "then": with_kinds, "else": alone})
        return closed(properties, ["type"]) | {"allOf": rules}

    def _properties(self, form: Form, stack: Form) -> dict[str, Schema]:
        sides = either(self.definitions.ref("section.stack", lambda: closed(self.stack(OVERLAY))), NONE)
        head = either(self.parts.part("head", form), NONE)
        ids = closed({name: described(f"id of the {name} token", _size(minimum=0)) for name in SPECIAL})
        sections = {
            "encoder": sides,
            "decoder": sides,
            "heads": either({"type": "object", "propertyNames": HEAD_NAME, "additionalProperties": head}, NONE),
            "parametrization": either(_parametrization(), NONE),
            "special_ids": either(ids, NONE),
        }
        own = declared(MODEL, self.parts, form, sections)
        return {"type": own.pop("type"), **self.stack(stack), **own}

    def _of_one(self, known: dict[str, Schema]) -> Schema:
        """What a model of one stack lacks or cannot have."""
        missing = {"required": ["d_model", "layer"], "anyOf": [{"required": [key]} for key in DEPTH_KEYS]}
        without = {"properties": dict.fromkeys(SIDES, False)}
        return {"if": _of_model(*self.single), "then": without | unless_misspelt(known, missing)}

    def _of_two(self, known: dict[str, Schema]) -> Schema:
        """The same of an encoder and a decoder: each says it itself, or `model` says it for both."""
        missing = {"allOf": [_in_model_or_both(*keys) for keys in (("d_model",), ("layer",), DEPTH_KEYS)]}
        without = {"properties": {"memory": False}}
        return {"if": _of_model(*self.paired), "then": without | unless_misspelt(known, missing)}

    def stack(self, form: Form) -> dict[str, Schema]:
        """The keys of a stack, with their values."""
        kinds = {"type": "object", "additionalProperties": either(layer(self.parts, OVERLAY), NONE)}
        sections = {
            "memory": either(_memory(form), {"const": LAST_STATE}, NONE),
            "layer": layer(self.parts, form),
            "layers": either(kinds, NONE),
            "pattern": either(_pattern(), NONE),
        }
        return declared(STACK, self.parts, form, sections)


def _of_model(*names: str) -> Schema:
    """Whether a model is of one of these types, which may be written with options."""
    with_options = {"type": "object", **of_type(*names)}
    return {"properties": {"type": {"anyOf": [{"enum": list(names)}, with_options]}}, "required": ["type"]}


def _size(**bounds: int) -> Schema:
    return either(*number("integer", WHOLE, **bounds))


def _memory(form: Form) -> Schema:
    return closed({"d_model": described("width of the memory", _size(**WIDTH))}, [] if form.overlay else ["d_model"])


def _parametrization() -> Schema:
    sizes = {"type": "object", "additionalProperties": _size(**WIDTH), "minProperties": 1}
    base = described("sizes by key of model, at which nothing is changed: d_model: 64", sizes)
    exponent = described("branches shrink with layers to this power (CompleteP: 1)", {"type": "number", **EXPONENTS})
    return closed({"type": {"const": "mup"}, "base": base, "depth_exponent": exponent}, ["type", "base"])


def _pattern() -> Schema:
    inner = {"type": "array", "items": ENTRY, "minItems": 1}
    return {"type": "array", "items": either(ENTRY, inner), "minItems": 1}


def _in_model_or_both(*keys: str) -> Schema:
    """One of `keys` stands in `model`, or in the encoder and in the decoder."""
    needed = [{"required": [key]} for key in keys]
    return {"anyOf": [*needed, {"properties": {side: {"anyOf": needed} for side in SIDES}, "required": list(SIDES)}]}
