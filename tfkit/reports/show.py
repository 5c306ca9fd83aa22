"""An architecture as plain data: parts with options, weight shapes and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from tfkit.components.attention import MultiHead
from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Config
from tfkit.core.keys import NormValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.core.trees import JsonObject
from tfkit.recipe.keys import LAYER, STACK
from tfkit.recipe.views.resolved import held, layer_columns
from tfkit.recipe.views.runs import numbers, places
from tfkit.reports.counts import CountedEntry, Counts

PartConfigs = Mapping[str, Config | tuple[Config, ...] | None]


def as_data(blueprint: Blueprint, counts: Counts, note: str | None = None) -> JsonObject:
    """Return the content of `table.render` as data with exact figures; `note` is printed above the table."""
    stacks = {plan.side: stack_figures(plan) for plan in blueprint.stacks()}
    return {
        "name": blueprint.name,
        "type": blueprint.type.part.part_name,
        "parameters": counts.total.parameters,
        "trainable_parameters": counts.trainable,
        "active_parameters": counts.active,
        "weight_bytes": counts.weight_bytes,
        "length": counts.length,
        "batch": counts.batch,
        "dtype": str(counts.dtype).removeprefix("torch."),
        "note": note,
        "stacks": stacks,
        "rows": list(_rows_data(counts)),
        "total": asdict(counts.total),
    }


def stack_figures(plan: StackPlan) -> dict[str, object]:
    """Return the sizes and rates of a stack, and how it is connected to the other stack."""
    figures = [key for key in STACK.values() if isinstance(key.kind, SizeValue | RateValue)]
    joined = {"memory_width": plan.memory_width, "last_state": plan.last_state}
    return {key.name: held(plan, key) for key in figures} | joined


def _rows_data(counts: Counts) -> Iterator[dict[str, object]]:
    blueprint = counts.blueprint
    where = {plan.side: places(plan.order) for plan in blueprint.stacks()}
    for row in counts.rows:
        plan: StackPlan | None = getattr(blueprint, row.stack) if row.stack else None
        data: dict[str, object] = {"stack": row.stack or None, "name": row.name}
        if plan is not None and row.kind is not None:
            layer = plan.layers[row.kind]
            data |= {"layers": numbers(where[plan.side][row.kind]), "times": row.times}
            data |= {key.name: held(layer, key) for key in LAYER.values() if key.is_plain}
            data["mask"] = [_summary(rule) for rule in layer.mask]
            # None if the layer uses the stack's position
            data["position"] = None if layer.position is None else [_summary(part) for part in layer.position]
        yield data | asdict(row.cost) | {"parts": list(_parts_data(blueprint, plan, row))}


def _parts_data(blueprint: Blueprint, plan: StackPlan | None, row: CountedEntry) -> Iterator[dict[str, object]]:
    layer = None if plan is None or row.kind is None else plan.layers[row.kind]
    configs = outer_configs(blueprint, plan) if plan is None or layer is None else layer_configs(layer)
    for part in row.parts:
        config = configs.get(part.name)
        many = config if isinstance(config, tuple) else (config,)
        facts = {} if plan is None or layer is None else agreed(many[0], plan, layer)
        yield {
            "name": part.name,
            "summary": ", ".join(_summary(each, facts) for each in many if each is not None),
            "options": [each.spelled() | facts for each in many if each is not None],
            "weights": {name: list(size) for name, size in part.weights.items()},
            **asdict(part.cost),
        }


def outer_configs(blueprint: Blueprint, plan: StackPlan | None) -> PartConfigs:
    """Return the parts outside the layers by name."""
    if plan is None:
        return {"head": blueprint.head, **{f"heads.{name}": head for name, head in blueprint.heads}}
    kinds = (PartValue, PartsValue, NormValue)
    declared = [name for name, key in STACK.items() if isinstance(key.kind, kinds) and name != "mask"]
    return {name: getattr(plan, name) for name in declared}


def layer_configs(layer: LayerPlan) -> dict[str, Any]:
    """Return the parts of a layer by name; norms are named by their place in the residual layout."""
    columns = layer_columns(layer)
    places = layer.residual.part.norm_names([sublayer.name for sublayer in layer.sublayers])
    return columns | {name: columns[f"{sublayer}_norm" if sublayer else "norm"] for name, sublayer in places.items()}


def agreed(config: Config | None, plan: StackPlan, layer: LayerPlan) -> dict[str, object]:
    """Return the head sizes that an attention computes because its options do not set them."""
    if not isinstance(config, MultiHead.Config):
        return {}
    return {"num_kv_heads": config.num_kv_heads or config.num_heads, "head_dim": config.width(plan.shape(plan=layer))}


def _summary(config: Config, facts: dict[str, object] | None = None) -> str:
    """Summarize a part as its name and non-default options."""
    name, *options = part_words(config, facts)
    return name + (f" ({', '.join(options)})" if options else "")


def part_words(config: Config, facts: dict[str, object] | None = None) -> list[str]:
    """Return the name of a part, then its non-default options."""
    words = [config.part.part_name]
    for name, field in type(config).model_fields.items():
        value = (facts or {}).get(name, getattr(config, name))
        if field.is_required() or name in (facts or {}) or _word(value) != _word(field.get_default()):
            words.append(f"{name} {_word(value)}")
    return words


def _changed(options: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield the non-default options of a nested mapping, and its type."""
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if name == "type" or field.is_required() or _word(value) != _word(field.get_default()):
            yield name, value


def _word(value: object) -> str:
    if isinstance(value, Config):
        return _summary(value)
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name} {_word(option)}" for name, option in _changed(value)) + "}"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "[" + ", ".join(map(_word, value)) + "]" if isinstance(value, (list, tuple)) else str(value)
