"""Values of `model:` that every stack overrides: unused, but still validated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfkit.core.errors import Place
from tfkit.core.keys import Kind, NormValue, PartsValue, PartValue
from tfkit.recipe.architecture.pattern import MAX_LAYERS, expand
from tfkit.recipe.architecture.per_layer import varies
from tfkit.recipe.architecture.prepare import Preparer, stack_norm
from tfkit.recipe.architecture.sizes import Sizes, Vocabulary
from tfkit.recipe.architecture.sublayers import SUBLAYER_KEY
from tfkit.recipe.keys import LAYER, STACK
from tfkit.recipe.overlays.merge import merge
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import items, mapping, plain


class _Forms(Faults):
    """Faults of values, except missing ones: the stacks may have reported these."""

    def _invalid_one(self, details: list[tuple[Node, Mapping[str, Any]]]) -> None:
        node, first = details[0]
        if first["type"] != "missing" and not (first["type"] == "part_type" and node.get("type") is None):
            super()._invalid_one(details)


def check_overridden(keys: Mapping[str, Node], used: Iterable[Node], faults: Faults) -> None:
    """Report invalid values among the stack keys of `model:` that do not occur in the texts `used`.

    Only the values themselves are validated, not their combination.
    """
    stands = set(_places(used))
    unused = set(_places(keys.values())) - stands
    if not unused:
        return
    found, known = _Forms(faults.found), len(faults.found)
    # a kind is merged over the layer, and a norm over the layer's
    wanted = {key for key, node in keys.items() if not stands.issuperset(_places([node]))} | {"layer", "layers"}
    _read({key: node for key, node in keys.items() if key in wanted}, found)
    faults.found += [fault for fault in found.found[known:] if (fault.place, fault.path) in unused]


def _places(texts: Iterable[Node]) -> Iterator[tuple[Place, str]]:
    """Yield the places of the values and keys in `texts`, each with its path."""
    for text in texts:
        for _, node in text.walk():
            yield node.place, node.path
            if node.key_place is not None:
                yield node.key_place, node.path


def _read(keys: Mapping[str, Node], faults: Faults) -> None:
    """Validate each value separately."""
    sizes, preparer = Sizes(next(iter(keys.values())), keys, faults), Preparer(faults, stack_norm(keys))
    for name, declared in STACK.items():
        if declared.is_plain and name in keys:
            sizes.plain(declared)
        _parts(keys.get(name), declared.kind, preparer)
    sizes.vocabulary(Vocabulary(), "decoder")
    layer, kinds = keys.get("layer"), mapping(keys.get("layers"))
    expand(keys.get("pattern"), MAX_LAYERS, list(kinds), faults)
    whole = [kind if layer is None else merge(layer, kind, []) for kind in kinds.values()]
    for text in (layer, *whole):
        for key, node in mapping(text).items():
            _in_layer(key, node, preparer)


def _in_layer(key: str, node: Node, preparer: Preparer) -> None:
    """Validate one key of a layer or a kind."""
    match = SUBLAYER_KEY.fullmatch(key)
    declared = LAYER.get(key if match is None else f"{match['base']}{match['norm'] or ''}")
    if varies(node):
        return
    if declared is None:
        preparer.faults.unknown_key(node, list(LAYER))
    elif declared.is_plain:
        plain(declared.kind, node, preparer.faults)
    else:
        _parts(node, declared.kind, preparer)


def _parts(node: Node | None, kind: Kind, preparer: Preparer) -> None:
    """Validate a part or a list of parts; `true` is the stack's norm."""
    if not isinstance(kind, PartValue | PartsValue | NormValue):
        return
    for item in items(node):
        if item.value is not None and not (kind.slot == "norm" and item.value is True):
            preparer.config(item, kind.slot)
