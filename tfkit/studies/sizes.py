"""The sizes of a ladder: one recipe scaled in width and depth together.

The recipe is the largest size. A smaller one keeps the head size and the kinds of layers: its width has h of the H
heads of the recipe, with `d_ff` and the key-value heads in proportion, and l of the L layers. Among all h and l, the
pair is chosen whose h * h * l is nearest to the next size of a geometric series, and whose h / l is nearest to the
recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.load import Recipe
from tfkit.reports.counts import count
from tfkit.studies.arms import StudySource, plain

MORE = "another --span, or a recipe with more heads or layers"
LEAST_SIZES = 4  # three determine E, A and a; one is held out
WIDTHS = ("d_model", "d_ff")
HEADS, GROUPS, LAYERS = "num_heads", "num_kv_heads", "num_layers"
SCALED = (*WIDTHS, HEADS, GROUPS, LAYERS)
UNITS = 8  # units of width in a recipe without heads
BENT = 1.5  # factor of width by depth beyond which a size has another shape
SHAPE = 1.0  # weight of a factor in h / l, relative to 1 for h * h * l: the law ignores shapes


@dataclass(frozen=True)
class LadderSize:
    """One size: its overrides by key, the parameters of its layers, and FLOPs per token of a forward pass."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    flops: int = 0
    heads: int = 0  # units of width
    layers: int = 0


@dataclass(frozen=True)
class SizeRule:
    """Scaled keys of a recipe with their values, by path."""

    written: Mapping[str, int]
    units: int  # units of width: the largest number of heads, or 8 without heads

    @property
    def depth(self) -> int:
        """Number of layers of the deepest stack."""
        return max(self._of(LAYERS))

    @property
    def width(self) -> int:
        """Largest d_model."""
        return max(self._of("d_model"))

    def _of(self, name: str) -> list[int]:
        return [value for key, value in self.written.items() if key.endswith(f".{name}")]

    def values(self, heads: int, layers: int) -> dict[str, int] | None:
        """Return the overrides for this number of heads and layers; None if a width or head count is fractional."""
        values: dict[str, int] = {}
        for key, value in self.written.items():
            name = key.rpartition(".")[2]
            if name == LAYERS:
                values[key] = max(1, round(value * layers / self.depth))
            elif name in WIDTHS and (value * heads) % self.units and name == "d_model":
                return None
            elif name in WIDTHS:
                values[key] = max(1, round(value * heads / self.units))
            elif name == HEADS and (value * heads) % self.units:
                return None
            elif name == HEADS:
                values[key] = value * heads // self.units
        return values | self._groups(values)

    def _groups(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the key-value heads: in proportion, or fewer, so that they divide the heads."""
        groups = {}
        for key, value in self.written.items():
            if not key.endswith(f".{GROUPS}"):
                continue
            beside = f"{key.removesuffix(GROUPS)}{HEADS}"
            heads = values.get(beside, value)
            most = max(1, value * heads // self.written.get(beside, heads))
            groups[key] = next(one for one in range(most, 0, -1) if heads % one == 0)
        return groups

    def candidates(self, target: float) -> Iterator[tuple[int, int]]:
        """Yield pairs of heads and layers, ordered by distance from the target in size and shape."""

        def distance(one: tuple[int, int]) -> float:
            heads, layers = one
            size = math.log(heads * heads * layers / target)
            return abs(size) + SHAPE * abs(math.log(heads / layers * self.depth / self.units))

        pairs = [(h, d) for h in range(1, self.units + 1) for d in range(1, self.depth + 1)]
        yield from sorted(pairs, key=lambda one: (distance(one), one))


def scaling_of(recipe: Recipe) -> SizeRule:
    """Return the keys to scale; raise UsageError if the recipe does not set them."""
    node = recipe.root.plain()
    written = dict(_numbers(node.get("model", {}), "model"))
    names = {key.rpartition(".")[2] for key in written}
    missing = [name for name in ("d_model", LAYERS) if name not in names]
    resolved = {key.rpartition(".")[2] for key, _ in _numbers(plain(recipe)["model"], "model")}
    missing += [HEADS] if HEADS in resolved and HEADS not in names else []
    if missing:
        raise UsageError(f"{recipe.name}: model: does not set {' and '.join(missing)}, which a ladder scales")
    heads = [value for key, value in written.items() if key.endswith(f".{HEADS}")]
    return SizeRule(written, max(heads, default=UNITS))


def _numbers(data: Mapping[str, Any], at: str) -> Iterator[tuple[str, int]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{at}.{key}")
        elif key in SCALED and isinstance(value, int) and not isinstance(value, bool):
            yield f"{at}.{key}", value


def sizes_of(source: StudySource, variants: tuple[str, ...], number: int, span: float) -> tuple[LadderSize, ...]:
    """Return `number` sizes from small to large, the recipe itself last; raise UsageError if there are too few."""
    if number < LEAST_SIZES:
        raise UsageError(f"--sizes {number}: a law needs {LEAST_SIZES} sizes or more: three to fit it, one held out")
    recipe = source.recipe(variants)
    scaling = scaling_of(recipe)
    largest = _counted(source, variants, "", {})
    sizes = [_named(largest, scaling.units, scaling)]
    largest_units = scaling.units**2 * scaling.depth
    span = min(span, largest_units)
    refused = ""
    for place in range(1, number):
        target = largest_units / span ** (place / (number - 1))
        size, why = _nearest(source, variants, scaling, target, sizes[-1].parameters)
        refused = why or refused
        if size is None:
            text = f"--sizes {number}: only {place} different sizes can be made of {recipe.name}"
            text += f" ({scaling.units} units of width, {scaling.depth} layers), the smallest a {span:g}th of it"
            text += f"; others are refused: {refused}" if refused else ""
            fewer = "fewer sizes or another --span" if place >= LEAST_SIZES else MORE
            raise UsageError(f"{text}; use {fewer}")
        sizes.append(size)
    return tuple(reversed(sizes))


def _nearest(
    source: StudySource, variants: tuple[str, ...], scaling: SizeRule, target: float, below: int
) -> tuple[LadderSize | None, str]:
    """Return the first valid candidate smaller than the previous size, and why others were refused."""
    why = ""
    for heads, layers in scaling.candidates(target):
        values = scaling.values(heads, layers)
        if values is None or heads * heads * layers > 2 * target:
            continue
        try:
            size = _counted(source, variants, "", values)
        except RecipeError as error:
            why = f"{error.faults[0].path}: {error.faults[0].message}"
            continue
        except UsageError as error:
            why = str(error)
            continue
        if size.parameters < 0.9 * below and heads * heads * layers > target / 2:
            return _named(size, heads, scaling), why
    return None, why


def _named(size: LadderSize, heads: int, scaling: SizeRule) -> LadderSize:
    """Name a size by its width and layers, as in 96x3; with two stacks, as in 96x3+3."""
    layers = [size.values.get(key, value) for key, value in scaling.written.items() if key.endswith(f".{LAYERS}")]
    width = scaling.width * heads // scaling.units
    deepest = max(layers)
    return replace(size, name=f"{width}x{'+'.join(map(str, layers))}", heads=heads, layers=deepest)


def sizes_like(source: StudySource, variants: tuple[str, ...], sizes: Sequence[LadderSize]) -> tuple[LadderSize, ...]:
    """Return a variant of a recipe at the sizes of the recipe; raise UsageError if it does not scale as the recipe."""
    recipe, like = source.recipe(variants), []
    scaling = scaling_of(recipe)
    for size in sizes:
        is_largest = size is sizes[-1]
        values = {} if is_largest else scaling.values(size.heads, size.layers)
        if values is None or (scaling.units, scaling.depth) != (sizes[-1].heads, sizes[-1].layers):
            what = "has other heads or layers than the recipe, and a ladder scales both"
            raise UsageError(f"--compare {variants[-1]}: {what}; compare it with tfkit study")
        like.append(replace(_counted(source, variants, f"{variants[-1]}+{size.name}", values)))
    return tuple(like)


def shape_notes(sizes: Sequence[LadderSize]) -> tuple[str, ...]:
    """Return a warning if the ratio of width to depth is not that of the recipe at all sizes."""
    shapes = {size.name: size.heads / size.layers for size in sizes if size.layers}
    ratios = {name: shape / shapes[sizes[-1].name] for name, shape in shapes.items()}
    odd = [f"{ratio:.2g} times at {name}" for name, ratio in ratios.items() if not 1 / BENT < ratio < BENT]
    text = f"the sizes change their shape: width by depth is, relative to {sizes[-1].name}, {', '.join(odd)}"
    return (f"{text}; the law ignores shapes, so trust its prediction less",) if odd else ()


def _counted(source: StudySource, variants: tuple[str, ...], name: str, values: Mapping[str, Any]) -> LadderSize:
    recipe = source.recipe(variants, values)
    return LadderSize(name, values, layer_parameters(source.blueprint(recipe)), source.count(recipe).flops_per_token)


def layer_parameters(blueprint: Blueprint) -> int:
    """Count N: the parameters of the layers and their norms, without embeddings, positions and heads."""
    outside = ("embedding", "position", "head")
    rows = count(blueprint, 1).rows
    return sum(row.cost.parameters for row in rows if row.stack and row.name not in outside)
