"""Conversion between the list of layer types in config.json and the kinds and pattern in a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.core.errors import Place
from tfkit.core.trees import ModelSection, Tree
from tfkit.recipe.architecture.pattern import expand, shortest
from tfkit.recipe.overlays import overlaid
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import MAPPING, from_value

FULL, SLIDING = "full_attention", "sliding_attention"  # names in config.json
KINDS = {FULL: "global", SLIDING: "local"}  # names in recipes


def set_kinds(model: Tree, types: Sequence[str], kinds: Mapping[str, Tree], once: int = 0) -> None:
    """Write layer types to `model`; `kinds` are the overrides of `layer` by type.

    If all layers have the same type, its overrides are merged into `layer`. The first `once` layers are not part of the
    repeating pattern.
    """
    used = list(dict.fromkeys(types))
    if len(used) == 1:
        model.update(overlaid("model", model, {"layer": kinds.get(used[0], {})}))
        return
    model["layers"] = {KINDS.get(name, name): kinds.get(name, {}) for name in used}
    model["pattern"] = shortest([KINDS.get(name, name) for name in types], once)


def layers_of(stack: ModelSection) -> list[Tree]:
    """Return every layer of a spelled-out stack, with the stack's `position` unless the layer sets its own."""
    kinds: Mapping[str, Tree] = stack.get("layers", {})
    pattern, _ = from_value(stack.get("pattern"), Place(MAPPING), "pattern")
    entries = expand(pattern, int(stack["num_layers"]), list(kinds), Faults())
    layers = (kinds[entry.kinds[0]] if entry.kinds else stack["layer"] for entry in entries)
    return [{"position": stack["position"], **layer} for layer in layers]
