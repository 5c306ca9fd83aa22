"""The recipe of an imported model in concise form: defaults are omitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tfkit.core.bounds import ModelSection, Options, Tree
from tfkit.core.component import Component, spell
from tfkit.core.keys import FlagValue, Kind, OwnValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.core.layout import ResidualFacts
from tfkit.core.registry import REGISTRY
from tfkit.recipe.keys import LAYER, MODEL, STACK
from tfkit.recipe.overlays import written
from tfkit.recipe.text.faults import OptionFacts, options_of

MISSING = object()
ORDER = ["type", *STACK, *(key for key in MODEL if key != "type")]
# keys that are written even if they have their default values: part names and sizes
KEPT = (
    "type", "d_model", "num_layers", "vocab_size", "tied", "residual", "norm", "embedding", "position", "attention",
    "feedforward", "activation", "init",
)  # fmt: skip


def shortened(model: ModelSection) -> Tree:
    """Return the model without default values; every part is still named.

    Overrides are kept, since without one, the value that it overrides would apply.
    """
    stack = _stack(model, {})
    sides = {
        side: _stack(model[side], model) for side in ("encoder", "decoder") if isinstance(model.get(side), Mapping)
    }
    rest = {key: _value(MODEL[key].kind, value) for key, value in model.items() if key in MODEL and key not in sides}
    return {key: _plain(value) for key, value in {**stack, **rest, **sides}.items()}


def _stack(keys: Options, below: Options) -> Tree:
    """Shorten the stack keys of `keys`; `below` holds the values that they override."""
    result: Tree = {}
    # layers override the stack's position
    position = keys.get("position", below.get("position"))
    positions = {} if position in (None, "none") else {"position": position}
    for key, value in keys.items():
        if key not in STACK:
            continue
        if key in below:
            result[key] = value
        elif key == "layer":
            result[key] = _layer(value, positions)
        elif key == "layers":
            layer = {**keys.get("layer", below.get("layer", {})), **positions}
            result[key] = {
                name: kind if kind is None or kind == "none" else _layer(kind, layer) for name, kind in value.items()
            }
        elif key == "final_norm" and value is True and _ends_in_norm(keys.get("layer", {})):
            continue
        elif not _is_default(key, STACK[key].kind, value):
            result[key] = _value(STACK[key].kind, value)
    return result


def _layer(keys: Options, below: Options) -> Tree:
    """Shorten a layer, or a kind of layer; `below` holds the values that it overrides."""
    result: Tree = {}
    for key, value in keys.items():
        kind = LAYER[key].kind if key in LAYER else OwnValue()  # keys such as feedforward_2 inherit from feedforward
        over = key in below or (isinstance(kind, PartValue) and kind.over in {**below, **keys})
        if over:
            result[key] = value
        elif not _is_default(key, kind, value):
            result[key] = _value(kind, value)
    return result


def _ends_in_norm(layer: Options) -> bool:
    """True if the layer's residual layout implies a final norm."""
    part = _part("residual", layer.get("residual", "post_norm"))
    return part is not None and issubclass(part, ResidualFacts) and part.final_norm


def _is_default(key: str, kind: Kind, value: object) -> bool:
    """True if a value other than a part is the default of its key."""
    default = {RateValue: 0.0, FlagValue: False, SizeValue: None}.get(type(kind), MISSING)
    return key not in KEPT and default is not MISSING and _plain(value) == default


def _value(kind: Kind, value: object) -> object:
    """Return a value, without default options if the value is a part."""
    if isinstance(kind, PartValue | PartsValue) and isinstance(value, list):
        return [_options(kind.slot, item) for item in value]
    return _options(kind.slot, value) if isinstance(kind, PartValue | PartsValue) else value


def _part(slot: str, value: object) -> type[Component] | None:
    """Return the part that a value names, or None if it names none."""
    name = value.get("type") if isinstance(value, Mapping) else value
    return REGISTRY.get(slot, name) if isinstance(name, str) and REGISTRY.has(slot, name) else None


def _options(slot: str, value: object) -> Any:
    """Return a part's value without default options."""
    part = _part(slot, value)
    if part is None or not isinstance(value, Mapping):
        return value
    options = {name: option for name, option in value.items() if name != "type"}
    return {"type": value["type"], **_without_defaults(part.Config, options)}


def _section(option: OptionFacts, value: object) -> object:
    """Return a nested mapping of options, such as a router's, without defaults."""
    kinds = option.sections
    return _without_defaults(kinds[0], value) if len(kinds) == 1 and isinstance(value, Mapping) else value


def _without_defaults(options: type[BaseModel], values: Mapping[str, object]) -> Tree:
    result: Tree = {}
    for name, value in values.items():
        field, option = options.model_fields.get(name), options_of(options).get(name)
        if field is None or option is None or option.slot == "norm":  # a norm overrides the stack's norm
            result[name] = value
            continue
        short = _options(option.slot, value) if option.slot else _section(option, value)
        default = None if field.is_required() else spell(field.get_default(call_default_factory=True))
        if field.is_required() or name in KEPT or _plain(short) != _plain(default):
            result[name] = short
    return result


def recipe_text(header: list[str], model: ModelSection, sections: Mapping[str, object]) -> str:
    """Return the text of a recipe, with `header` as comment lines at the top."""
    ordered = {**{key: model[key] for key in ORDER if key in model}, **model}
    body = written({"tfkit": 1, "model": ordered, **{key: value for key, value in sections.items() if value}})
    return "".join(f"# {line}\n" for line in header) + body


def _plain(value: object) -> object:
    """Reduce parts without options to their names, and "none" to None."""
    if isinstance(value, Mapping):
        return value["type"] if set(value) == {"type"} else {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if value == "none" else value
