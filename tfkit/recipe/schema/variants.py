"""`variants:`: overlays and axes, whose keys are dotted, as in `model.layer.attention.num_heads` (rule R20)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from tfkit.recipe.keys import TOP
from tfkit.recipe.schema.values import NONE, REFERENCE, SHARED, Definitions, Schema, described, either, one_or_many

STACK = r"model\.((encoder|decoder)\.)?"
LAYER = rf"{STACK}(layer|layers\.[^.]+)\."
NESTED = {"encoder", "decoder", "layer", "layers"}  # what is below them stands in the patterns above
ANY_KEY = ".+"


class VariantKeys:
    """The dotted keys at which a variant may lay something, as patterns, with the schemas of their values."""

    def __init__(self, definitions: Definitions, sections: Mapping[str, Schema]) -> None:
        self.definitions = definitions
        self.sections = sections  # each as an overlay

    def schema(self) -> Schema:
        """The mapping of variants by name; an entry of one key with a list is an axis."""
        one = {
            "type": "object",
            "properties": {key: described(TOP[key].sentence, _or_axis(value)) for key, value in self.sections.items()},
            "patternProperties": {f"^{key}$": _or_axis(value) for key, value in self._keys()},
            "additionalProperties": False,
        }
        return {"type": "object", "additionalProperties": either(one, NONE)}

    def _keys(self) -> Iterator[tuple[str, Schema]]:
        model, stack, layer = (
            self._children({"$ref": f"{REFERENCE}section.{name}"})
            for name in ("model_overlay", "stack", "layer_overlay")
        )
        yield from self._paths(r"model\.", {key: value for key, value in model.items() if key not in stack})
        yield from self._paths(STACK, stack)
        yield rf"{STACK}layers\.[^.]+", self._children(stack["layers"])["[^.]+"]
        yield from self._paths(LAYER, layer)
        yield from self._below("", {key: value for key, value in self.sections.items() if key != "model"}, frozenset())

    def _paths(
        self, prefix: str, keys: Mapping[str, Schema], above: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, Schema]]:
        """The dotted keys of a mapping that stands at `prefix`, and all below it; `above` is what it stands in."""
        yield from ((prefix + key, value) for key, value in keys.items())
        yield from self._below(prefix, keys, above)

    def _below(self, prefix: str, keys: Mapping[str, Schema], above: frozenset[str]) -> Iterator[tuple[str, Schema]]:
        """What stands below keys that are mappings; those with the same options are one pattern."""
        alike: dict[str, list[str]] = {}
        for key, value in keys.items():
            children = self._children(value)
            if children and key not in NESTED:
                alike.setdefault(json.dumps(children, sort_keys=True), []).append(key)
        for text, names in alike.items():
            below = prefix + (names[0] if len(names) == 1 else f"({'|'.join(names)})") + r"\."
            if text in above:  # a part that may hold itself
                yield below + ANY_KEY, {}
            else:
                yield from self._paths(below, json.loads(text), above | {text})

    def _children(self, schema: Schema) -> dict[str, Schema]:
        """The keys of the mapping that `schema` describes, as patterns, each with the schema of its value."""
        found: dict[str, Schema] = {}
        for mapping, place in self._mappings(schema, ""):
            others = mapping.get("additionalProperties")
            keys = {re.escape(key): _at(place, key, value) for key, value in mapping.get("properties", {}).items()}
            keys |= {pattern[1:-1]: value for pattern, value in mapping.get("patternProperties", {}).items()}
            keys |= {"[^.]+": others} if isinstance(others, dict) else {ANY_KEY: {}} if others is True else {}
            found |= {key: value for key, value in keys.items() if value or key not in found}
        return found

    def _mappings(self, schema: Schema, place: str) -> Iterator[tuple[Schema, str]]:
        """`schema`, which stands at `place`, and all that it refers to.

        Of a part, those are the options that may be given without its type: the options of any part.
        """
        yield schema, place
        reference = schema.get("$ref", "")
        if reference and reference.removeprefix(REFERENCE) not in SHARED:
            yield from self._mappings(self.definitions.find(reference), reference)
        for key in ("anyOf", "allOf"):
            for index, one in enumerate(schema.get(key, ())):
                inner, way = (one.get("else", {}), f"{index}/else") if "if" in one else (one, str(index))
                yield from self._mappings(inner, f"{place}/{key}/{way}" if place else "")
        if "then" in schema:
            yield from self._mappings(schema["then"], f"{place}/then" if place else "")


def _at(place: str, key: str, value: Schema) -> Schema:
    """A reference to what stands under `key` in the mapping at `place`; the value itself where that has no place."""
    return {"$ref": f"{place}/properties/{key}"} if place and value else value


def _or_axis(value: Schema) -> Schema:
    """A value, or the list of values of an axis."""
    return either(*one_or_many(value, value))
