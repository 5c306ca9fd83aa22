"""`layer` and the kinds laid over it (rules R2, R4 to R7, R11 to R13)."""

from __future__ import annotations

from tfkit.recipe.keys import LAYER, STACK, SUBLAYERS
from tfkit.recipe.schema.declared import declared, value
from tfkit.recipe.schema.parts import Parts
from tfkit.recipe.schema.values import IN_KIND, IN_LAYER, NONE, PER_LAYER, Form, Schema, described, either

NUMBERED = "_([2-9]|[1-9][0-9]+)"  # what comes a second time is feedforward_2


def layer(parts: Parts, form: Form) -> Schema:
    """The mapping under `layer`, whole or as an overlay of it: a kind, or `layer` where something is laid over it."""
    schema = parts.definitions.ref(f"section.layer{'_overlay' * form.overlay}", lambda: _layer(parts, form))
    return described(STACK["layer"].sentence, {"type": "object", "allOf": [schema]})


def _layer(parts: Parts, form: Form) -> Schema:
    form = IN_KIND if form.overlay else IN_LAYER
    order = {"type": "array", "items": either({"enum": list(SUBLAYERS)}, PER_LAYER), "minItems": 1}
    again = {}
    for name in SUBLAYERS:
        again[f"^{name}{NUMBERED}$"] = described(
            f"{name} once more, laid over {name}", value(LAYER[name].kind, parts, form.over())
        )
        norm = value(LAYER[f"{name}_norm"].kind, parts, form)
        again[f"^{name}{NUMBERED}_norm$"] = described(f"the norm of that {name} alone", norm)
    properties = declared(LAYER, parts, form, {"sublayers": either(order, NONE)})
    return {"properties": properties, "patternProperties": again, "additionalProperties": False}
