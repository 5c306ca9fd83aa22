"""`model.parametrization`: the muP factors of scores, logits, embeddings and branches, set as options of parts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace

from tfkit.core.blueprint import Blueprint, LayerPlan, Parametrization, Sizes, StackPlan, SublayerPlan, layer_sizes
from tfkit.core.component import Config
from tfkit.core.layout import ResidualFacts
from tfkit.core.options import scale_factor
from tfkit.core.slots import AttentionFacts, HeadFacts, SublayerFacts
from tfkit.recipe.overlays import merge, nested
from tfkit.recipe.text.faults import Faults, is_whole
from tfkit.recipe.text.node import Node, mapping

KEYS = ("type", "base", "depth_exponent")
EXAMPLE = "{type: mup, base: {d_model: 64}}"
DEPTHS = {"num_layers": ("encoder", "decoder"), "encoder.num_layers": ("encoder",), "decoder.num_layers": ("decoder",)}


class Parametrizer:
    """Parser of `parametrization:` that also applies it to a Blueprint; faults are added to `faults`."""

    def __init__(self, model: Node, faults: Faults, resolve: Callable[[Node], Blueprint | None]) -> None:
        self.model = model
        self.faults = faults
        self.resolve = resolve
        self.node = mapping(model)["parametrization"]

    def applied(self, blueprint: Blueprint) -> Blueprint:
        """Return the Blueprint with the factors of its parametrization, or unchanged if there is a fault."""
        count = len(self.faults.errors)
        chosen = self._read(blueprint)
        result = blueprint
        if chosen is not None and len(self.faults.errors) == count:
            result = self._with_factors(blueprint, chosen)
        return blueprint if len(self.faults.errors) > count else result

    def _read(self, blueprint: Blueprint) -> Parametrization | None:
        keys = mapping(self.node)
        for key, child in keys.items():
            if key not in KEYS:
                self.faults.unknown_key(child, list(KEYS))
        kind, base = keys.get("type"), keys.get("base")
        if kind is None or kind.value != "mup":
            self.faults.add(kind or self.node, f"unknown parametrization; the only one is {EXAMPLE}")
            return None
        if base is None or not mapping(base):
            self.faults.add(base or self.node, f"needs base, the sizes of the base model: {EXAMPLE}")
            return None
        exponent = self._exponent(keys.get("depth_exponent"))
        sizes = {}
        for key, node in mapping(base).items():
            if is_whole(node.value) and node.value > 0:
                sizes[key] = node
            else:
                self.faults.add(node, "expected a whole number from 1 as a size of the base model")
        small = self._base({key: node for key, node in sizes.items() if key not in DEPTHS}) if sizes else None
        if small is None or exponent is None:
            return None
        sides = {plan.side for plan in blueprint.stacks()}
        for key, node in sizes.items():
            if not sides.intersection(DEPTHS.get(key, sides)):
                self.faults.add(node, f"this model has one stack, the {blueprint.last.side}; use num_layers")
        written = {key: int(str(node.value)) for key, node in sizes.items()}
        depths = {side: size for key, size in written.items() for side in DEPTHS.get(key, ()) if side in sides}
        return Parametrization(small, tuple(depths.items()), exponent, tuple(written.items()))

    def _exponent(self, node: Node | None) -> float | None:
        value = 1.0 if node is None else node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.5 <= value <= 1:
            self.faults.add(node or self.node, "expected a depth_exponent from 0.5 to 1 (CompleteP: 1)")
            return None
        return float(value)

    def _base(self, sizes: dict[str, Node]) -> Blueprint | None:
        """Resolve the same model with the sizes of the base."""
        own = {key: child for key, child in mapping(self.model).items() if key != "parametrization"}
        root = Node({"model": replace(self.model, value=own)}, self.model.place)
        for key, node in sizes.items():
            path = f"model.{key}"
            root = merge(root, nested(path, node.moved(path)), self.faults.errors)
        return self.resolve(mapping(root)["model"])

    def _with_factors(self, blueprint: Blueprint, chosen: Parametrization) -> Blueprint:
        """Apply the factors to the options of embeddings, attention, residuals and heads."""
        stacks = {plan.side: plan for plan in chosen.base.stacks()}
        pairs = {plan.side: self._stack(plan, stacks[plan.side], blueprint, chosen) for plan in blueprint.stacks()}
        own, small = ({side: pair[index] for side, pair in pairs.items()} for index in (0, 1))
        base = replace(chosen.base, encoder=small.get("encoder"), decoder=small.get("decoder"))
        return replace(
            blueprint,
            encoder=own.get("encoder"),
            decoder=own.get("decoder"),
            head=None if blueprint.head is None else self._head(blueprint.head, blueprint, chosen),
            heads=tuple((name, self._head(head, blueprint, chosen)) for name, head in blueprint.heads),
            parametrization=replace(chosen, base=base),
        )

    def _stack(
        self, plan: StackPlan, base: StackPlan, blueprint: Blueprint, chosen: Parametrization
    ) -> tuple[StackPlan, StackPlan]:
        """Return the stack and its base with matching layers: layers that differ in either are separate in both."""
        branch = chosen.depth_ratio(blueprint, plan.side) ** -chosen.depth_exponent
        numbers: dict[tuple[int, int], int] = {}
        layers: list[tuple[LayerPlan, Sizes]] = []
        smalls: list[LayerPlan] = []
        for pair in zip(plan.order, base.order, strict=True):
            if pair not in numbers:
                small = base.layers[pair[1]]
                layer = self._layer(plan.layers[pair[0]], plan, small, base, branch), layer_sizes(small)
                if layer not in layers:
                    layers.append(layer)
                    smalls.append(small)
                numbers[pair] = layers.index(layer)
        order = tuple(numbers[pair] for pair in zip(plan.order, base.order, strict=True))
        embedding = plan.embedding
        if embedding is not None and isinstance(scale := _option(embedding, "scale"), str):
            embedding = embedding.model_copy(update={"scale": scale_factor(scale, base.d_model)})
        own = replace(plan, layers=tuple(layer for layer, _ in layers), order=order, embedding=embedding)
        return own, replace(base, layers=tuple(smalls), order=order, entries=plan.entries)

    def _layer(self, layer: LayerPlan, plan: StackPlan, small: LayerPlan, base: StackPlan, branch: float) -> LayerPlan:
        residual = layer.residual
        own_gain, no_gain = (inspect.getattr_static(part, "init_gain") for part in (residual.part, ResidualFacts))
        if branch != 1.0 and own_gain is not no_gain:
            self._add(f"'{residual.part.part_name}' already scales with depth; remove num_layers from base")
        if branch != 1.0 and residual.branch_scale == 1.0:
            residual = residual.model_copy(update={"branch_scale": branch})
        pairs = zip(layer.sublayers, small.sublayers, strict=True)
        sublayers = tuple(replace(one, config=self._attention(one, plan, other, base)) for one, other in pairs)
        return replace(layer, residual=residual, sublayers=sublayers)

    def _attention(
        self, one: SublayerPlan, plan: StackPlan, small: SublayerPlan, base: StackPlan
    ) -> SublayerFacts.Config:
        """Return the attention with scores scaled by 1 / head width instead of 1 / sqrt(head width)."""
        config, other = one.config, small.config
        if not (isinstance(config, AttentionFacts.Config) and isinstance(other, AttentionFacts.Config)):
            return config
        width, before = config.score_width(plan.shape()), other.score_width(base.shape())
        scale = _option(config, "scale")
        if width == before or isinstance(scale, int | float):
            return config
        if width is None or before is None or "scale" not in type(config).model_fields:
            text = f"attention '{config.part.part_name}' has no option `scale`"
            self._add(f"{text}; use the same head width in both models")
            return config
        factor = math.sqrt(before) / width if scale is None else scale_factor(str(scale), base.d_model) * before / width
        return config.model_copy(update={"scale": factor})

    def _head(self, head: HeadFacts.Config, blueprint: Blueprint, chosen: Parametrization) -> HeadFacts.Config:
        plan = blueprint.read_by(head)
        ratio = chosen.width_ratio(blueprint, plan.side)
        scale = _option(head, "scale")
        if ratio == 1 or isinstance(scale, int | float):
            return head
        if "scale" not in type(head).model_fields:
            if head.is_tied():
                self._add(f"head '{head.part.part_name}' has no option `scale`; set tied: false")
            return head
        factor = scale_factor(None if scale is None else str(scale), chosen.base.read_by(head).d_model)
        return head.model_copy(update={"scale": factor / ratio})

    def _add(self, message: str) -> None:
        self.faults.add(self.node, message)


def _option(config: Config, name: str) -> object:
    return dict(config).get(name)
