"""Completion and validation of part nodes: the stack's norm as default, and paths relative to the recipe."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tfkit.core.component import Config
from tfkit.core.errors import Place, RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.core.shape import Shape
from tfkit.recipe.architecture.pattern import is_per_layer
from tfkit.recipe.overlays import as_part, merge
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, mapping, node_at, under
from tfkit.recipe.text.options import OptionFacts, config_class, options_of
from tfkit.recipe.text.source import from_value


def stack_norm(keys: Mapping[str, Node]) -> Node | None:
    """Return the norm of a stack (R12): `layer.norm`, unless it differs per layer."""
    norm = node_at(mapping(keys.get("layer")), "norm")
    return None if norm is None or is_per_layer(norm) else norm


class Preparer:
    """Completes and validates parts. `norm` is the stack's norm (R12), None if there is no stack or norm.

    Relative paths start from `base` (`data.folder` for corpora), or from the recipe's folder if it is None.
    """

    def __init__(self, faults: Faults, norm: Node | None = None, base: Path | None = None) -> None:
        self.faults = faults
        self.norm = norm
        self.base = base

    def of_corpora(self, data: Node | None) -> Preparer:
        """Return a Preparer for the corpora in `data:`, whose paths are relative to `data.folder`."""
        base = node_at(mapping(data), "folder")
        is_set = base is not None and isinstance(base.value, str)
        return Preparer(self.faults, self.norm, _path(base)) if base is not None and is_set else self

    def config(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> Config | None:
        """Return the Config of `node`, checked against `shape` if given; None after a fault."""
        return self.read(node, slot, shape, default)[0]

    def read(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> tuple[Config | None, Node]:
        """Return the Config, as `config` does, and the completed node that was validated."""
        named = with_type(node, default)
        filled = self._filled(named, config_class(named, slot))
        config = validated(filled, slot, self.faults)
        if config is not None and shape is not None:
            self.faults.problems(filled, config.check(shape))
        return config, filled

    def _filled(self, node: Node, model: type[BaseModel] | None) -> Node:
        filled = node if model is None else self.fields(as_part(node), model)
        return filled if isinstance(node.value, dict) or len(filled.entries) > 1 else node

    def fields(self, node: Node, model: type[BaseModel]) -> Node:
        """Return the mapping of a part or section with its options completed."""
        if not isinstance(node.value, dict):
            return node
        children = dict(node.value)
        for name, option in options_of(model).items():
            child = children.get(name)
            if option.slot == "norm":
                child = self._norm(child, option)
            elif child is not None:
                preparer = self.of_corpora(node) if option.slot == "corpus" and "folder" in children else self
                child = preparer._option(with_type(child, option.default), option)
            if child is not None:
                children[name] = child
        return replace(node, value=children)

    def _option(self, child: Node, option: OptionFacts) -> Node:
        if isinstance(child.value, list):
            return replace(child, value=[self._option(item, option) for item in child.value])
        if isinstance(child.value, str) and option.path is not None:
            return replace(child, value=str(_path(child, self.base)))
        return self._filled(child, option.schema(child))

    def _norm(self, child: Node | None, option: OptionFacts) -> Node | None:
        """Resolve a norm option: true copies `layer.norm`, and another norm is merged over it."""
        if child is None:
            return self.norm if option.has_default else None
        if child.value is True:
            if self.norm is None:
                self.faults.add(child, "true means the stack's norm, but layer.norm is not set")
                return replace(child, value=None)
            return replace(as_part(self.norm), place=child.place, path=child.path)
        if child.value is None or child.value is False or self.norm is None:
            return child
        return merge(self.norm, child, self.faults.errors)


def with_type(node: Node, default: str) -> Node:
    """Add the default type to options without one (`train.schedule: {warmup: 5}`)."""
    if not default or not isinstance(node.value, dict) or not node.value or "type" in node.value or is_per_layer(node):
        return node
    word = Node(default, node.place, under(node.path, "type"), node.key_place)
    return replace(node, value={"type": word, **node.value})


def validated(node: Node, slot: str, faults: Faults) -> Config | None:
    """Return the Config of a completed part node, or None after a fault."""
    try:
        return Slot(slot).validate(node.plain())
    except ValidationError as error:
        faults.invalid(node, error, config_class(node, slot))
    except ValueError as error:
        faults.add(node, str(error))
    return None


def _path(node: Node, base: Path | None = None) -> Path:
    """Resolve the path at `node` relative to `base`, or else to the folder of the recipe.

    Paths from the command line are relative to the working directory. So are paths in a shipped recipe, unless the file
    ships with it.
    """
    here = folder(node) if base is None or node.is_change else base
    if node.place.is_shipped and node.folder is not None and os.path.isfile(node.folder / str(node.value)):
        here = node.folder
    return (here / str(node.value)).absolute()


def folder(node: Node) -> Path:
    """Return the base folder of paths at `node`: the file's folder, or the working directory for shipped recipes."""
    return Path() if node.place.is_shipped or node.folder is None else node.folder


Part = str | Mapping[str, object] | Config
Parts = Part | Sequence[Part]


def parts_of(slot: str, parts: Parts) -> tuple[Config, ...]:
    """Return the Configs of one or several parts, each a name, a mapping with a type, or a Config.

    Raise RecipeError with all faults, and UsageError for a Config of another slot.
    """
    faults, configs = Faults(), []
    for index, part in enumerate([parts] if isinstance(parts, (str, Mapping, Config)) else parts):
        path = f"{slot}[{index}]"
        if isinstance(part, Config):
            try:
                configs.append(Slot(slot).validate(part))
            except ValueError as error:
                raise UsageError(f"{path}: {error}") from None
            continue
        node, errors = from_value(part, Place(f"<{slot}>"), path)
        faults.errors += errors
        config = None if errors else Preparer(faults).config(node, slot)
        configs += [] if config is None else [config]
    if faults.errors:
        raise RecipeError(faults.errors)
    return tuple(configs)


def part_at(slot: str, part: Part, place: str, path: str) -> Config:
    """Return the Config of a part set at `place`, such as a command-line option; raise RecipeError if it is invalid."""
    node, errors = from_value(part, Place(place), path)
    faults = Faults(errors)
    config = None if errors else Preparer(faults).config(node, slot)
    if config is None:
        raise RecipeError(faults.errors)
    return config
