"""The schemas of the values of declared keys, by their kind."""

from __future__ import annotations

from collections.abc import Mapping

from tfkit.core.keys import FlagValue, Key, Kind, NormValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.recipe.schema.parts import Parts
from tfkit.recipe.schema.values import (
    FLAG,
    IN_LAYER,
    NONE,
    PER_LAYER,
    TRUE,
    WHOLE,
    Form,
    Schema,
    described,
    either,
    number,
    one_or_many,
)


def declared(keys: Mapping[str, Key], parts: Parts, form: Form, sections: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schema of each key with its sentence; `sections` are those of keys with a rule of their own."""
    return {
        name: described(key.sentence, sections[name] if name in sections else value(key.kind, parts, form))
        for name, key in keys.items()
    }


def value(kind: Kind, parts: Parts, form: Form) -> Schema:
    """The schema of a value of that kind; in a layer `per_layer` may stand for numbers and flags."""
    match kind:
        case SizeValue():
            sizes = number("integer", WHOLE, minimum=1, maximum=kind.limit)
            words = [{"enum": list(kind.words)}] if kind.words else []
            return either(*sizes, *words, *([] if kind.needed else [NONE]))
        case RateValue():
            return either(*number("number", form if form.in_layer else WHOLE, minimum=0, exclusiveMaximum=1), NONE)
        case FlagValue():
            return either(FLAG, NONE)
        case PartValue():
            part = parts.part(kind.slot, form.over() if kind.over else form, kind.default)
            return part if kind.needed else either(part, NONE)
        case PartsValue():
            # a list is never laid over, so what stands in one is whole
            item = either(parts.part(kind.slot, IN_LAYER), PER_LAYER) if form.in_layer else parts.part(kind.slot, WHOLE)
            return either(*one_or_many(parts.part(kind.slot, form.over() if kind.over_stack else form), item), NONE)
        case NormValue():
            return either(parts.part("norm", form.over()), TRUE, NONE)
    raise TypeError(f"{kind} has a schema of its own")
