"""An architecture as plain data: parts with options, weight shapes and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from tfkit.components.attention import MultiHead
from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.bounds import JsonObject
from tfkit.core.component import Config
from tfkit.core.keys import NormValue, PartsValue, PartValue, RateValue, SizeValue
from tfkit.core.store import linked
from tfkit.recipe.keys import LAYER, STACK
from tfkit.recipe.text.node import inline
from tfkit.recipe.views.resolved import held, layer_columns
from tfkit.recipe.views.row import numbers, places
from tfkit.reports.counts import CountedEntry, Counts

PartConfigs = Mapping[str, Config | tuple[Config, ...] | None]
NO_FACTS: Mapping[str, object] = {}


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
        "inputs": {name: one._asdict() for name, one in blueprint.extra_inputs.items()},
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
    stored = {plan.side: linked(plan.store_uses()) for plan in blueprint.stacks()}
    for row in counts.rows:
        plan: StackPlan | None = getattr(blueprint, row.stack) if row.stack else None
        data: dict[str, object] = {"stack": row.stack or None, "name": row.name}
        if plan is not None and row.kind is not None:
            layer = plan.layers[row.kind]
            data |= {"layers": numbers(where[plan.side][row.kind]), "times": row.times}
            data |= {key.name: held(layer, key) for key in LAYER.values() if key.is_plain}
            data["mask"] = [summary(rule) for rule in layer.mask]
            stores = [one for (kind, _), one in stored[plan.side].items() if kind == row.kind]
            for name in ("writes", "reads"):
                data[name] = sorted({text for one in stores for text in getattr(one, name)})
            data["streams"] = plan.streams(plan.order.index(row.kind))  # before the layer
            # None if the layer uses the stack's position
            data["position"] = None if layer.position is None else [summary(part) for part in layer.position]
        yield data | asdict(row.cost) | {"parts": list(_parts_data(blueprint, plan, row))}


def _parts_data(blueprint: Blueprint, plan: StackPlan | None, row: CountedEntry) -> Iterator[dict[str, object]]:
    layer = None if plan is None or row.kind is None else plan.layers[row.kind]
    configs = outer_configs(blueprint, plan) if layer is None else layer_configs(layer)
    for part in row.parts:
        config = configs.get(part.name)
        many = [one for one in (config if isinstance(config, tuple) else (config,)) if one is not None]
        facts = agreed(many[0], plan, layer) if many and plan is not None and layer is not None else {}
        yield {
            "name": part.name,
            "summary": ", ".join(summary(each, facts) for each in many),
            "options": [each.spelled() | facts for each in many],
            "weights": {name: list(size) for name, size in part.weights.items()},
            **asdict(part.cost),
        }


def outer_configs(blueprint: Blueprint, plan: StackPlan | None) -> PartConfigs:
    """Return the parts outside the layers by name."""
    if plan is None:
        return {"head": blueprint.head, **{f"heads.{name}": head for name, head in blueprint.heads}}
    kinds = (PartValue, PartsValue, NormValue)
    declared = [name for name, key in STACK.items() if isinstance(key.kind, kinds) and name != "mask"]
    ends = {"streams": plan.layers[plan.order[-1]].residual} if plan.streams(0) is not None else {}
    return {name: getattr(plan, name) for name in declared} | ends


def layer_configs(layer: LayerPlan) -> dict[str, Any]:
    """Return the parts of a layer by name; norms are named by their place in the residual layout."""
    columns = layer_columns(layer)
    places = layer.residual.part.norm_names([sublayer.name for sublayer in layer.sublayers])
    return columns | {name: columns[f"{sublayer}_norm" if sublayer else "norm"] for name, sublayer in places.items()}


def agreed(config: Config, plan: StackPlan, layer: LayerPlan) -> dict[str, object]:
    """Return the head sizes that an attention computes because its options do not set them."""
    if not isinstance(config, MultiHead.Config):
        return {}
    return {"num_kv_heads": config.num_kv_heads or config.num_heads, "head_dim": config.width(plan.shape(plan=layer))}


def summary(config: Config, facts: Mapping[str, object] = NO_FACTS) -> str:
    """Summarize a part as its name and non-default options."""
    name, *options = part_words(config, facts)
    return name + (f" ({', '.join(options)})" if options else "")


def part_words(config: Config, facts: Mapping[str, object] = NO_FACTS) -> list[str]:
    """Return the name of a part, then its non-default options; `facts` replace options and are always listed."""
    return [config.part.part_name, *(f"{name} {_word(value)}" for name, value in _changed(config, facts))]


def _changed(options: BaseModel, facts: Mapping[str, object] = NO_FACTS) -> Iterator[tuple[str, object]]:
    """Yield the options that are not at their default, and the type of a nested mapping."""
    for name, field in type(options).model_fields.items():
        value = facts.get(name, getattr(options, name))
        is_listed = name in facts or field.is_required() or (name == "type" and not isinstance(options, Config))
        if is_listed or _word(value) != _word(field.get_default()):
            yield name, value


def _word(value: object) -> str:
    if isinstance(value, Config):
        return summary(value)
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name} {_word(option)}" for name, option in _changed(value)) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    return inline(value) if value is None or isinstance(value, bool) else str(value)
