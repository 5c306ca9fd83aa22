"""Layers of several types: a list with a word for each in a config.json, kinds and a pattern in a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tfkit.interop.huggingface.settings import put

Tree = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"  # their words
KINDS = {FULL: "global", SLIDING: "local"}  # ours


def lay_kinds(model: Tree, types: Sequence[str], kinds: Mapping[str, Tree], once: int = 0) -> None:
    """Say in `model` of which type each layer is; `kinds` are what is laid over `layer` for a type.

    Where all layers are of one type, `layer` says it. The first `once` layers stand before what repeats.
    """
    used = list(dict.fromkeys(types))
    if len(used) == 1:
        for key, value in kinds.get(used[0], {}).items():
            put(model, f"layer.{key}", value)
        return
    model["layers"] = {KINDS.get(name, name): kinds.get(name, {}) for name in used}
    words = [KINDS.get(name, name) for name in types]
    rest = _pattern(words[once:])
    model["pattern"] = [*_runs(words[:once]), rest] if once and rest else _pattern(words)


def _pattern(kinds: Sequence[str]) -> list[Any]:
    """The shortest list that, repeated, returns the kinds."""
    count = len(kinds)
    period = next((n for n in range(1, count) if all(kinds[i] == kinds[i % n] for i in range(count))), count)
    return _runs(kinds[:period])


def _runs(kinds: Sequence[str]) -> list[Any]:
    """The kinds with those in a row counted."""
    found = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return [kind if count == 1 else f"{kind}*{count}" for kind, count in found]


def spelled_layers(stack: Mapping[str, Any]) -> list[Tree]:
    """What each layer of a spelled-out stack is; `position` is the stack's where a layer has none of its own."""
    whole = {"position": stack["position"]}
    if "layers" not in stack:
        return [whole | stack["layer"]] * int(stack["num_layers"])
    order = _expanded(stack["pattern"], int(stack["num_layers"]))
    return [whole | stack["layers"][kind] for kind in order]


def _expanded(pattern: Sequence[Any], count: int) -> list[str]:
    """The kind of each layer: entries may be counted, an inner list is repeated to fill."""
    parts = [_counted(entry) if isinstance(entry, list) else _counted([entry]) for entry in pattern]
    inner = next((index for index, entry in enumerate(pattern) if isinstance(entry, list)), None)
    if inner is None:
        cycle, before, after = [kind for part in parts for kind in part], [], []
    else:
        before = [kind for part in parts[:inner] for kind in part]
        cycle, after = parts[inner], [kind for part in parts[inner + 1 :] for kind in part]
    room = count - len(before) - len(after)
    return before + [cycle[index % len(cycle)] for index in range(room)] + after


def _counted(entries: Sequence[str]) -> list[str]:
    kinds = []
    for entry in entries:
        kind, _, number = entry.partition("*")
        kinds += [kind] * int(number or 1)
    return kinds
