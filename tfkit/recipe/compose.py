"""The shipped recipes, and composition of a recipe. Later ones win: bases, file, variants, overrides, `--set`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfkit.core.errors import Fault, Place, RecipeError, UsageError, with_article
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import (
    COMPOSING_KEYS,
    Variant,
    choose,
    merge,
    nested,
    override_overlay,
    read_variants,
    set_overlay,
)
from tfkit.recipe.text.node import Node, inline, kind, shorten
from tfkit.recipe.text.source import LANGUAGE, MAPPING, from_mapping, near_file, parse, read_bytes
from tfkit.storage.files import why_missing

TASKS = "tasks"  # folder of trainable recipes
FOLDERS = ("models", TASKS, "studies")


def named_like(word: str, recipes: Mapping[str, Path]) -> str | None:
    """Return the shortest recipe name with the prefix `word`, else a similar name, or None."""
    begun = [name for name in recipes if word and name.startswith(word.casefold())]
    return min(begun, key=len) if begun else nearest(word, list(recipes))


def shipped_tasks() -> dict[str, Path]:
    """Return the trainable shipped recipes by name."""
    return {name: path for name, path in shipped_recipes().items() if path.parent.name == TASKS}


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name (the file's stem), in the order models, tasks, studies."""
    package = Path(__file__).resolve().parents[1]
    in_wheel = package / "_recipes"
    root = in_wheel if in_wheel.is_dir() else package.parent / "recipes"
    return {path.stem: path for folder in FOLDERS for path in sorted((root / folder).glob("*.yaml"))}


MAX_BASES = 32


@dataclass(frozen=True)
class Composed:
    """A recipe with all its layers merged, not yet validated.

    `root` is the merged tree without `extends` and `variants`. `text` is the text of the file (None for a mapping);
    `name` is the file's stem, or "recipe". `variants` are the parsed variants of the file and its bases, and `chosen`
    the selected ones. `changes` are the overrides by dotted key. `overlays` are all trees merged over the file.
    """

    root: Node
    faults: list[Fault]
    text: str | None
    file: Path | None
    variants: Mapping[str, Variant]
    name: str
    overlays: Sequence[Node] = ()
    chosen: tuple[str, ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict)

    def laid(
        self, overrides: Mapping[str, object] | None = None, sets: Sequence[str] = (), variants: Sequence[str] = ()
    ) -> Composed:
        """Merge variants, then overrides and `sets`, over a recipe that has none yet."""
        faults = list(self.faults)
        changed = [(key, override_overlay(key, value, faults)) for key, value in (overrides or {}).items()]
        changed += [(text.partition("=")[0].strip(), set_overlay(text, faults)) for text in sets]
        overlays = [choose(name, self.variants, faults) for name in variants] + [overlay for _, overlay in changed]
        applied, root = [overlay for overlay in overlays if overlay is not None], self.root
        for layer in applied:
            root = merge(root, layer, faults)
        changes = _values(changed) if changed else {}
        return replace(self, root=root, faults=faults, overlays=applied, chosen=tuple(variants), changes=changes)


def compose(
    source: str | Path | Mapping[str, object],
    *,
    overrides: Mapping[str, object] | None = None,
    sets: Sequence[str] = (),
    variants: Sequence[str] = (),
    shipped: Mapping[str, Path] | None = None,
    label: str = MAPPING,
) -> Composed:
    """Merge the recipe `source` (a shipped name, a path or a mapping) with its bases and the given changes.

    Faults are collected in `.faults`; in a mapping, their place is `label`. Raise RecipeError at once if the source or
    a base is missing or is not a mapping, because every key would otherwise be reported as missing.
    """
    shipped = shipped_recipes() if shipped is None else shipped
    text, file = (None, None) if isinstance(source, Mapping) else _read(source, shipped)
    root, faults = from_mapping(source, label) if isinstance(source, Mapping) else parse(text or b"", str(file))
    if root.value is None:
        raise RecipeError(faults)
    layers = _with_bases(root, file, shipped, faults)
    entries = read_variants(_variant_entries(layers, faults), faults)
    root, *above = [
        replace(layer, value={key: node for key, node in layer.entries.items() if key not in COMPOSING_KEYS})
        for layer in layers
    ]
    for layer in above:
        root = merge(root, layer, faults)
    name = file.stem if file else Path(label).stem if label != MAPPING else "recipe"
    words = None if text is None else text.decode("utf-8", "replace")
    texts, chosen = ((one,) if isinstance(one, str) else one for one in (sets, variants))
    return Composed(root, faults, words, file, entries, name).laid(overrides, texts, chosen)


def upgraded(saved: Composed) -> Composed:
    """Drop keys of earlier versions from a saved recipe."""
    train = saved.root.get("train")
    parallel = None if train is None else train.get("parallel")
    if parallel is not None and isinstance(parallel.value, dict):
        parallel.value.pop("pieces", None)
    return saved


def version_faults(root: Node) -> list[Fault]:
    """Return a fault for an unsupported version of the recipe language."""
    node = root.get("tfkit")
    if node is None or (type(node.value) is int and node.value == LANGUAGE):
        return []
    if type(node.value) is not int:
        message = f"expected the version of the recipe language, {LANGUAGE}, got {shorten(inline(node.plain()))}"
    elif node.value > LANGUAGE:
        message = f"version {node.value} of the recipe language is newer than this tfkit, which supports version "
        message += f"{LANGUAGE}; install a newer tfkit"
    else:
        message = f"version {node.value} of the recipe language does not exist; this tfkit supports version {LANGUAGE}"
    return [Fault(node.place, node.path, message)]


def with_overrides(root: Node, values: Node | None, faults: list[Fault]) -> Node:
    """Merge a mapping from dotted keys to values into the tree of a recipe."""
    for key, node in values.entries.items() if values is not None else ():
        root = merge(root, nested(key, node.moved(key)), faults)
    return root


def _values(changed: Sequence[tuple[str, Node | None]]) -> dict[str, object]:
    """Return the plain value of each overlay by dotted key; the values of a repeated key are merged."""
    merged: dict[str, Node] = {}
    for key, overlay in changed:
        if overlay is not None:
            merged[key] = merge(merged[key], overlay, []) if key in merged else overlay
    values = {}
    for key, overlay in merged.items():
        inner = overlay
        for name in key.split("."):
            inner = inner.entries[name]
        values[key] = inner.plain()
    return values


def _read(source: str | Path, shipped: Mapping[str, Path]) -> tuple[bytes, Path]:
    """Return the content and path of a recipe file; raise RecipeError if the file does not exist."""
    if not isinstance(source, str | Path):
        raise UsageError(f"a recipe must be a name, a path or a mapping, not {with_article(type(source).__name__)}")
    path = _display_path(shipped[source]) if isinstance(source, str) and source in shipped else Path(source)
    if not os.path.exists(path):  # unlike Path.exists, never raises
        raise RecipeError([_unknown(str(source), path, shipped)])
    return read_bytes(path), path


def _unknown(word: str, path: Path, shipped: Mapping[str, Path], base: Node | None = None) -> Fault:
    """Return a fault for a missing recipe or base, with a similar name, or file relative to the base's folder."""
    by_name = None if os.path.islink(path) else named_like(Path(word).stem, shipped)
    by_file = near_file(path)
    if _is_path(word):
        message, suggestion = f"{why_missing(path)}: '{shorten(str(path), 200)}'", by_file or by_name
    elif base is None:
        message, suggestion = f"'{shorten(word, 200)}' is neither a shipped recipe nor a file", by_name or by_file
    else:
        message = f"'{shorten(word)}' is not a shipped recipe; a path must end in .yaml"
        suggestion = by_name or by_file
    if base is None:
        return Fault(Place(word), "", message, suggestion)
    if suggestion is not None and suggestion not in shipped:
        suggestion = os.path.relpath(suggestion, base.folder or Path())
    return Fault(base.place, base.path, message, suggestion)


def _is_path(word: str) -> bool:
    return "/" in word or os.sep in word or word.endswith((".yaml", ".yml"))


def _with_bases(root: Node, file: Path | None, shipped: Mapping[str, Path], faults: list[Fault]) -> list[Node]:
    """Return the chain of bases, lowest first, ending in the recipe; raise RecipeError if a base is unreadable."""
    layers, trail = [root], [] if file is None else [file]
    while (base := layers[-1].get("extends")) is not None and base.value is not None:
        path = _base_path(base, shipped, faults)
        _refuse_circle(path, trail, base, faults)
        try:
            root, errors = parse(read_bytes(path), str(path), via=f"base {path.stem}")
        except RecipeError as error:
            reasons = [f"{fault.file}: {fault.message}" for fault in error.faults]
            hints = [fault.suggestion for fault in error.faults]
            at_extends = [Fault(base.place, base.path, *pair) for pair in zip(reasons, hints, strict=True)]
            raise RecipeError([*faults, *at_extends]) from None
        faults += errors + version_faults(root)
        if root.value is None:
            raise RecipeError(faults)
        layers.append(root)
        trail.append(path)
    return layers[::-1]


def _base_path(base: Node, shipped: Mapping[str, Path], faults: list[Fault]) -> Path:
    """Return the file named by `extends`; raise RecipeError, including the earlier `faults`, if it does not exist."""
    word = base.value
    if not isinstance(word, str):
        message = f"expected one shipped recipe or path, not {kind(base)}; a base may itself extend another"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])
    if word in shipped:
        return _display_path(shipped[word])
    path = _display_path((base.folder or Path()) / word)
    if _is_path(word) and os.path.exists(path):
        return path
    raise RecipeError([*faults, _unknown(word, path, shipped, base)])


def _refuse_circle(path: Path, trail: list[Path], base: Node, faults: list[Fault]) -> None:
    real = [os.path.realpath(earlier) for earlier in (*trail, path)]
    if real[-1] in real[:-1]:
        circle = [*trail[real.index(real[-1]) :], path]
        message = f"forms a circle: {' -> '.join(map(str, circle))}"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])
    if len(trail) > MAX_BASES:
        message = f"more than {MAX_BASES} levels of extends"
        raise RecipeError([*faults, Fault(base.place, base.path, message)])


def _display_path(path: Path) -> Path:
    """Return a path for display: normalized if that names the same file, relative if in the working directory."""
    tidy = Path(os.path.normpath(path))
    if os.path.realpath(tidy) != os.path.realpath(path):  # with a symlink, a/link/../b is not a/b
        tidy = path
    inside = tidy.is_absolute() and tidy.is_relative_to(Path.cwd())
    return tidy.relative_to(Path.cwd()) if inside else tidy


def _variant_entries(layers: list[Node], faults: list[Fault]) -> dict[str, Node]:
    """Merge the variants of all layers by name: a later entry replaces an earlier one, and `none` removes it."""
    entries: dict[str, Node] = {}
    for layer in layers:
        variants = layer.get("variants")
        if variants is not None and variants.value is not None and not isinstance(variants.value, dict):
            message = f"expected a mapping from names to variants, got {kind(variants)}"
            faults.append(Fault(variants.place, variants.path, message))
        elif variants is not None:
            entries |= variants.entries
    return {name: entry for name, entry in entries.items() if entry.value is not None}
