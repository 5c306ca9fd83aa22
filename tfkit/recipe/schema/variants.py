"""`variants:`: overlays and axes with dotted keys, such as `model.layer.attention.num_heads` (rule R20)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tfkit.recipe.schema.values import REFERENCE, Schema, closed, either, many, named, refer

STACK = r"model\.((encoder|decoder)\.)?"
LAYER = rf"{STACK}(layer|layers\.[^.]+)\."
NESTED = {"section.model", "section.stack", "section.layer", "section.layers"}  # covered by the patterns above
ANY_KEY = ".+"


class VariantKeys:
    """Patterns for the dotted keys that a variant may override, with the schemas of their values."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self.definitions = definitions

    def schema(self, sections: Mapping[str, Schema]) -> Schema:
        """Return the schema of variants by name; a single key with a list is an axis."""
        axes = {key: either(value, many(value)) for key, value in sections.items()}
        patterns = {f"^{key}$": either(value, many(value)) for key, value in self._keys(sections)}
        return named({**closed(axes), "patternProperties": patterns})

    def _keys(self, sections: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
        model, stack, kinds, layer = (
            self._children(f"section.{name}") for name in ("model", "stack", "layers", "layer")
        )
        yield from self._paths(r"model\.", {key: value for key, value in model.items() if key not in stack})
        yield from self._paths(STACK, stack)
        yield from self._paths(rf"{STACK}layers\.", kinds)
        yield from self._paths(LAYER, layer)
        yield from self._paths("", sections)

    def _paths(
        self, prefix: str, keys: Mapping[str, Schema], above: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, Schema]]:
        """Yield the dotted keys at and below `prefix`; keys with the same definition share a pattern."""
        alike: dict[str, list[str]] = {}
        for key, value in keys.items():
            yield prefix + key, value
            for name in self._mappings(value):
                alike.setdefault(name, []).append(key)
        for name, same in alike.items():
            below = prefix + (same[0] if len(same) == 1 else f"({'|'.join(same)})") + r"\."
            if name in above:  # recursive part
                yield below + ANY_KEY, {}
            else:
                yield from self._paths(below, self._children(name), above | {name})

    def _children(self, name: str) -> dict[str, Schema]:
        """Return the keys of a definition as patterns."""
        mapping = self.definitions[name]
        others = mapping["additionalProperties"]
        found = {
            re.escape(key): value and refer(f"{name}/properties/{key}") for key, value in mapping["properties"].items()
        }
        found |= {pattern[1:-1]: value for pattern, value in mapping.get("patternProperties", {}).items()}
        return found | ({"[^.]+": others} if isinstance(others, dict) else {ANY_KEY: {}} if others else {})

    def _mappings(self, schema: Schema) -> Iterator[str]:
        """Yield the mapping definitions of a value; for a part, the options of its whole slot."""
        for one in schema.get("anyOf", [schema]):
            name, _, option = one.get("$ref", "").removeprefix(REFERENCE).partition("/properties/")
            if option:
                yield from self._mappings(self.definitions[name]["properties"][option])
            name = f"any.{name}" if f"any.{name}" in self.definitions else name
            if not option and "properties" in self.definitions.get(name, {}) and name not in (*NESTED, "per_layer"):
                yield name
