"""Parts: the names of a slot, and the options of each; what an editor completes after `attention: {type: `."""

from __future__ import annotations

from collections.abc import Mapping

from tfkit.core.component import Component
from tfkit.core.registry import REGISTRY
from tfkit.recipe.schema.options import Options
from tfkit.recipe.schema.values import PER_LAYER, Definitions, Form, Schema, either


class Parts:
    """The schemas of parts, made from the registry as it is now."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.options = Options(definitions, self.part)

    def part(self, slot: str, form: Form, default: str = "") -> Schema:
        """A part of `slot`: its name, or a mapping with its options and its type, unless that is the default."""
        default = "" if form.overlay else default
        name = f"{slot}{form.suffix}{'_or_' * bool(default)}{default}"
        return self.definitions.ref(name, lambda: self._part(slot, form, default))

    def _part(self, slot: str, form: Form, default: str) -> Schema:
        parts = REGISTRY.load(slot)
        if not parts:
            return {"enum": ["none"], "errorMessage": f"no {slot} is registered; register one of your own"}
        names = sorted(parts)
        texts = [summary_of(parts[name]) for name in names]
        options = {name: self._options(slot, name, form) for name in names}
        word: Schema = {"enum": names, "enumDescriptions": texts}
        kind = {"description": f"which {slot}", **either(word, *([PER_LAYER] * form.in_layer))}
        return {
            "anyOf": [word, {"type": "object"}],
            **self._too_short(slot, names, form),
            "if": {"type": "object"},
            "then": {
                "properties": {"type": kind},
                "allOf": [
                    *({"if": of_type(name), "then": options[name]} for name in names),
                    {"if": of_type(*names), "else": self._untyped(slot, form, default)},
                ],
            },
        }

    def _too_short(self, slot: str, names: list[str], form: Form) -> Schema:
        """A bare name says no options: refused, with the way out, where the part requires some."""
        found = []
        for name in names:
            missing = self.definitions[f"{slot}.{name}{form.suffix}"].get("then", {}).get("required", ())
            if missing:
                needed = ", ".join(f"{option}: ..." for option in missing)
                message = f"needs options: {{type: {name}, {needed}}}"
                found.append({"if": {"enum": [name]}, "then": {"type": "object", "errorMessage": message}})
        return {"allOf": found} if found else {}

    def _options(self, slot: str, name: str, form: Form) -> Schema:
        """The mapping of one part."""
        return self.definitions.ref(f"{slot}.{name}{form.suffix}", lambda: self._mapping(slot, name, form))

    def _mapping(self, slot: str, name: str, form: Form) -> Schema:
        part = REGISTRY.get(slot, name)
        text = summary_of(part)
        kind = {"type": {"description": text, "const": name}}
        return self.options.mapping(part.Config, f"{slot}.{name}", form, kind) | {"description": text}

    def _untyped(self, slot: str, form: Form, default: str) -> Schema:
        """A mapping that says no type, or none that is known."""
        unknown = self.definitions.ref(f"{slot}.any{form.suffix}", lambda: self.any_options(slot, form))
        if not default:
            return unknown
        return {"if": {"required": ["type"]}, "then": unknown, "else": self._options(slot, default, form)}

    def any_options(self, slot: str, form: Form) -> Schema:
        """The options of any part of the slot: all that is known of a mapping that says no type."""
        found: dict[str, dict[str, Schema]] = {}
        for name in REGISTRY.names(slot):
            self._options(slot, name, form)
            for option, schema in self.definitions[f"{slot}.{name}{form.suffix}"]["properties"].items():
                found.setdefault(option, {})[name] = schema
        found.pop("type", None)
        properties = {"type": {}, **{option: _merged(schemas) for option, schemas in sorted(found.items())}}
        if form.overlay:
            return {"properties": properties, "additionalProperties": False}
        known = {"propertyNames": {"enum": list(properties)}}
        return {"if": known, "then": {"required": ["type"]}, "else": known}


def summary_of(part: type[Component]) -> str:
    """What a part's docstring says first: its equation and its paper."""
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())


def of_type(*names: str) -> Schema:
    """Whether a mapping says one of these types."""
    return {"properties": {"type": {"enum": list(names)}}, "required": ["type"]}


def _merged(schemas: Mapping[str, Schema]) -> Schema:
    """One option as several parts have it."""
    texts = {name: schema.get("description", "") for name, schema in schemas.items()}
    if len(set(texts.values())) > 1:
        text = "; ".join(f"{name}: {text}" for name, text in texts.items())
    else:
        text = next(iter(texts.values()))
    values = [
        {key: value for key, value in one.items() if key not in ("description", "default")} for one in schemas.values()
    ]
    return {"description": text, **either(*values)}
