"""`layer` and the kinds laid over it (rules R2, R4 to R7, R11 to R13)."""

from __future__ import annotations

from tfkit.recipe.architecture.sublayers import SUBLAYERS
from tfkit.recipe.keys import KEYS
from tfkit.recipe.schema.parts import Parts
from tfkit.recipe.schema.values import (
    FLAG,
    IN_KIND,
    IN_LAYER,
    NONE,
    PER_LAYER,
    TRUE,
    Form,
    Schema,
    described,
    either,
    number,
    one_or_many,
)

NUMBERED = "_([2-9]|[1-9][0-9]+)"  # what comes a second time is feedforward_2
RATE = {"minimum": 0, "exclusiveMaximum": 1}


def layer(parts: Parts, form: Form) -> Schema:
    """The mapping under `layer`, whole or as an overlay of it: a kind, or `layer` where something is laid over it."""
    schema = parts.definitions.ref(f"section.layer{'_overlay' * form.overlay}", lambda: _layer(parts, form))
    return described(KEYS["stack"]["layer"], {"type": "object", "allOf": [schema]})


def _layer(parts: Parts, form: Form) -> Schema:
    form = IN_KIND if form.overlay else IN_LAYER
    values = {
        "residual": either(parts.part("residual", form), NONE),
        "norm": either(parts.part("norm", form), NONE),
        "dropout": either(*number("number", form, **RATE), NONE),
        "position": _several(parts, "position", form.over()),
        "mask": _several(parts, "mask", form),
        "shared": either(FLAG, NONE),
        "sublayers": either(
            {"type": "array", "items": either({"enum": list(SUBLAYERS)}, PER_LAYER), "minItems": 1}, NONE
        ),
        **{name: _sublayer(parts, name, form) for name in SUBLAYERS},
        **{f"{name}_norm": _norm(parts, form) for name in SUBLAYERS},
    }
    again = {}
    for name in SUBLAYERS:
        again[f"^{name}{NUMBERED}$"] = described(
            f"{name} once more, laid over {name}", _sublayer(parts, name, form.over())
        )
        again[f"^{name}{NUMBERED}_norm$"] = described(f"the norm of that {name} alone", _norm(parts, form))
    properties = {key: described(KEYS["layer"][key], value) for key, value in values.items()}
    return {"properties": properties, "patternProperties": again, "additionalProperties": False}


def _several(parts: Parts, slot: str, form: Form) -> Schema:
    """A part, a list of them, or none; a list is never laid over, so what stands in one is whole."""
    return either(*one_or_many(parts.part(slot, form), either(parts.part(slot, IN_LAYER), PER_LAYER)), NONE)


def _sublayer(parts: Parts, name: str, form: Form) -> Schema:
    """A sublayer's part; cross-attention is laid over attention (R16)."""
    return either(parts.part(SUBLAYERS[name], form.over() if name == "cross_attention" else form), NONE)


def _norm(parts: Parts, form: Form) -> Schema:
    """A norm laid over the layer's."""
    return either(parts.part("norm", form.over()), TRUE, NONE)
