"""Composition of a recipe from layers, the later ones winning: bases, the file, variants, overrides, `--set`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfkit.core.errors import Fault, Place, RecipeError, UsageError, with_article
from tfkit.recipe.overlays import COMPOSING_KEYS, choose, merge, nested, override_overlay, read_variants, set_overlay
from tfkit.recipe.shipped import named_like, shipped_recipes
from tfkit.recipe.text.node import Node, inline, kind, shorten
from tfkit.recipe.text.source import LANGUAGE, MAPPING, from_mapping, near_file, parse, read_bytes

MAX_BASES = 32


@dataclass(frozen=True)
class Composed:
    """A recipe with all its layers merged, not yet validated.

    `root` no longer has `extends` and `variants`; `variants` holds those of the file and its bases as written; `text`
    is the file as written (None for a mapping), `name` the file's stem or "recipe"; `overlays` is everything merged
    over the file: the `chosen` variants, and `changes`, single values by dotted key.
    """

    root: Node
    faults: list[Fault]
    text: str | None
    file: Path | None
    variants: Node | None
    name: str
    overlays: Sequence[Node] = ()
    chosen: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Written:
    """A recipe as written."""

    root: Node
    faults: list[Fault]
    text: str | None = None
    file: Path | None = None


def compose(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    variants: Sequence[str] = (),
    shipped: Mapping[str, Path] | None = None,
    label: str = MAPPING,
) -> Composed:
    """Compose the recipe `source` (a shipped name, a path or a mapping) with its bases, variants, overrides and sets.

    Faults are collected in `.faults`; those of a mapping have the place `label`. Raises RecipeError if the source or a
    base is missing or not a mapping, since everything else would then be reported as missing too.
    """
    shipped = shipped_recipes() if shipped is None else shipped
    written = _written(source, shipped, label)
    faults = list(written.faults)
    layers = _with_bases(written, shipped, faults)
    entries = _variant_entries(layers, faults)
    root = _stripped(layers[0])
    for layer in layers[1:]:
        root = merge(root, _stripped(layer), faults)
    chosen = tuple(_listed(variants))
    changed = _changed(overrides or {}, _listed(sets), faults)
    overlays = [*_chosen(entries, chosen, faults), *(overlay for _, overlay in changed)]
    for overlay in overlays:
        root = merge(root, overlay, faults)
    name = written.file.stem if written.file else Path(label).stem if label != MAPPING else "recipe"
    return Composed(root, faults, written.text, written.file, entries, name, overlays, chosen, _values(changed))


def version_faults(root: Node) -> list[Fault]:
    """Return a fault for an unsupported version of the recipe language."""
    node = root.get("tfkit")
    if node is None or (type(node.value) is int and node.value == LANGUAGE):
        return []
    if type(node.value) is not int:
        message = f"expected the version of the recipe language, {LANGUAGE}, got {shorten(inline(node.plain()))}"
    elif node.value > LANGUAGE:
        message = (
            f"version {node.value} of the recipe language is newer than this tfkit; install a newer one; "
            f"this one speaks version {LANGUAGE}"
        )
    else:
        message = f"version {node.value} of the recipe language does not exist; this is version {LANGUAGE}"
    return [Fault(node.place, node.path, message)]


def laid_over(root: Node, values: Node | None, faults: list[Fault]) -> Node:
    """Merge a mapping of dotted keys to values over a recipe's tree."""
    for key, node in values.entries.items() if values is not None else ():
        root = merge(root, nested(key, node.moved(key)), faults)
    return root


def _listed(texts: Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts


def _chosen(entries: Node | None, names: Sequence[str], faults: list[Fault]) -> list[Node]:
    """Return the overlays of the chosen variants, in order."""
    known = read_variants(entries.value if entries and isinstance(entries.value, dict) else {}, faults)
    found = [choose(text, known, faults) for text in names]
    return [overlay for overlay in found if overlay is not None]


def _changed(overrides: Mapping[str, Any], sets: Sequence[str], faults: list[Fault]) -> list[tuple[str, Node]]:
    """Return the overlays of single values with their dotted keys, in order."""
    found = [(key, override_overlay(key, value, faults)) for key, value in overrides.items()]
    found += [(text.partition("=")[0].strip(), set_overlay(text, faults)) for text in sets]
    return [(key, overlay) for key, overlay in found if overlay is not None]


def _values(changed: Sequence[tuple[str, Node]]) -> dict[str, Any]:
    """Return the values of these overlays by key; values of a repeated key are merged."""
    laid: dict[str, Node] = {}
    for key, overlay in changed:
        laid[key] = merge(laid[key], overlay, []) if key in laid else overlay
    return {key: _value_at(overlay, key) for key, overlay in laid.items()}


def _value_at(overlay: Node, key: str) -> Any:
    for name in key.split("."):
        overlay = overlay.entries[name]
    return overlay.plain()


def _written(source: str | Path | Mapping[str, Any], shipped: Mapping[str, Path], label: str) -> _Written:
    if isinstance(source, Mapping):
        return _readable(_Written(*from_mapping(source, label)))
    if not isinstance(source, str | Path):
        raise UsageError(f"a recipe is a name, a path or a mapping, not {with_article(type(source).__name__)}")
    path = _shown(shipped[source]) if isinstance(source, str) and source in shipped else Path(source)
    if not os.path.exists(path):  # unlike Path.exists, never raises
        raise RecipeError([_unknown(str(source), Place(str(source)), path, shipped)])
    content = read_bytes(path)
    root, faults = parse(content, str(path))
    return _readable(_Written(root, faults, content.decode("utf-8", "replace"), path))


def _readable(written: _Written) -> _Written:
    """Return the recipe; raise RecipeError if it is not a mapping."""
    if written.root.value is None:
        raise RecipeError(written.faults)
    return written


def _unknown(word: str, place: Place, path: Path, shipped: Mapping[str, Path]) -> Fault:
    """Return the fault of a missing recipe."""
    looks_like_path = _is_path(word)
    named = shorten(str(path) if looks_like_path else word, 200)
    message = f"no such file: '{named}'" if looks_like_path else f"'{named}' is neither a shipped recipe nor a file"
    by_name = named_like(Path(word).stem, shipped)
    by_file = near_file(path)
    suggestion = (by_file or by_name) if looks_like_path else (by_name or by_file)
    return Fault(place, "", message, suggestion)


def _is_path(word: str) -> bool:
    return "/" in word or os.sep in word or word.endswith((".yaml", ".yml"))


def _with_bases(written: _Written, shipped: Mapping[str, Path], faults: list[Fault]) -> list[Node]:
    """Return the recipe and its bases, the lowest first; raise RecipeError for an unreadable base."""
    layers = [written.root]
    trail = [written.file] if written.file else []
    while (base := layers[-1].get("extends")) is not None and base.value is not None:
        path = _base_path(base, shipped, faults)
        _refuse_circle(path, trail, base, faults)
        try:
            root, found = parse(read_bytes(path), str(path), via=f"base {path.stem}")
        except RecipeError as error:
            raise RecipeError([*faults, *(_at_extends(fault, base) for fault in error.faults)]) from None
        faults += found + version_faults(root)
        if root.value is None:
            raise RecipeError(faults)
        layers.append(root)
        trail.append(path)
    return layers[::-1]


def _at_extends(fault: Fault, base: Node) -> Fault:
    return Fault(base.place, base.path, f"{fault.file}: {fault.message}", fault.suggestion)


def _base_path(base: Node, shipped: Mapping[str, Path], faults: list[Fault]) -> Path:
    """Return the file that `extends` refers to; raise RecipeError with all `faults` if there is none."""
    word = base.value
    if not isinstance(word, str):
        message = f"one shipped recipe or one path, not {kind(base)}; a base may extend another in its turn"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])
    if word in shipped:
        return _shown(shipped[word])
    path = _shown((base.folder or Path()) / word)
    if _is_path(word) and os.path.exists(path):
        return path
    raise RecipeError([*faults, _unknown_base(word, base, path, shipped)])


def _unknown_base(word: str, base: Node, path: Path, shipped: Mapping[str, Path]) -> Fault:
    """Return the fault of an invalid `extends`; suggestions are relative to the file."""
    fault = _unknown(word, base.place, path, shipped)
    message = fault.message if _is_path(word) else f"'{shorten(word)}' is no shipped recipe; a path ends in .yaml"
    suggestion = fault.suggestion
    if suggestion is not None and suggestion not in shipped:
        suggestion = os.path.relpath(suggestion, base.folder or Path())
    return replace(fault, path=base.path, message=message, suggestion=suggestion)


def _refuse_circle(path: Path, trail: list[Path], base: Node, faults: list[Fault]) -> None:
    resolved = [_resolved(earlier) for earlier in trail]
    if _resolved(path) in resolved:
        circle = [*trail[resolved.index(_resolved(path)) :], path]
        message = f"extends goes in a circle: {' -> '.join(map(str, circle))}"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])
    if len(trail) > MAX_BASES:
        message = f"more than {MAX_BASES} recipes extend each other"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _shown(path: Path) -> Path:
    """Shorten a path: relative inside the working directory and normalized, if it stays the same file."""
    tidy = Path(os.path.normpath(path))
    if _resolved(tidy) != _resolved(path):  # a/link/../b is not a/b
        tidy = path
    inside = tidy.is_absolute() and tidy.is_relative_to(Path.cwd())
    return tidy.relative_to(Path.cwd()) if inside else tidy


def _stripped(root: Node) -> Node:
    return replace(root, value={key: node for key, node in root.entries.items() if key not in COMPOSING_KEYS})


def _variant_entries(layers: list[Node], faults: list[Fault]) -> Node | None:
    """Merge the variants of all layers by name: later entries replace earlier ones, none removes them."""
    entries: dict[str, Node] = {}
    last: Node | None = None
    for layer in layers:
        variants = layer.get("variants")
        if variants is None or variants.value is None:
            continue
        if not isinstance(variants.value, dict):
            faults.append(
                Fault(variants.place, variants.path, f"variants is a mapping of names, this is {kind(variants)}")
            )
            continue
        entries |= variants.value
        last = variants
    entries = {name: entry for name, entry in entries.items() if entry.value is not None}
    return replace(last, value=entries) if last else None
