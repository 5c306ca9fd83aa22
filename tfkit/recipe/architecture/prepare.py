"""Contextual defaults of a recipe: the stack's norm, and paths relative to the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tfkit.core.component import Config
from tfkit.core.options import PathMark, Slot
from tfkit.core.shape import Shape
from tfkit.recipe.architecture.per_layer import is_per_layer
from tfkit.recipe.overlays.merge import as_part, merge
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, under
from tfkit.recipe.text.options import config_class, marks, section_beside, types_in
from tfkit.recipe.text.values import given, mapping


def stack_norm(keys: Mapping[str, Node]) -> Node | None:
    """Return the norm of the stack `keys` (R12): that of its layer, if common to all layers."""
    norm = given(mapping(keys.get("layer")), "norm")
    return None if norm is None or is_per_layer(norm) else norm


class Preparer:
    """Fills in contextual defaults. `norm` is the stack's norm (R12), None without a stack or norm.

    `base` is the folder of corpus files (`data.folder`), None for the recipe's folder.
    """

    def __init__(self, faults: Faults, norm: Node | None = None, base: Path | None = None) -> None:
        self.faults = faults
        self.norm = norm
        self.base = base

    def of_corpora(self, data: Node | None) -> Preparer:
        """Return the preparer for the corpora of the section `data`."""
        base = given(mapping(data), "folder")
        return (
            self if base is None or not isinstance(base.value, str) else Preparer(self.faults, self.norm, _path(base))
        )

    def config(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> Config | None:
        """Return the Config of `node`, checked against `shape` if given; None with its faults added."""
        return self.read(node, slot, shape, default)[0]

    def read(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> tuple[Config | None, Node]:
        """Like `config`, and return the text that was validated: `node` with contextual defaults filled in."""
        filled = self.part(with_type(node, default), slot)
        config = validated(filled, slot, self.faults)
        if config is not None and shape is not None:
            self.faults.problems(filled, config.check(shape))
        return config, filled

    def part(self, node: Node, slot: str) -> Node:
        """Return a part's node, completed for validation in `slot`."""
        model = config_class(node, slot)
        if model is None:
            return node
        if isinstance(node.value, str):
            filled = self.fields(as_part(node), model)
            return filled if len(filled.value) > 1 else node  # type: ignore[arg-type]
        return self.fields(node, model)

    def fields(self, node: Node, model: type[BaseModel]) -> Node:
        """Fill in the options of a part or a section."""
        if not isinstance(node.value, dict):
            return node
        children = dict(node.value)
        for name, field in model.model_fields.items():
            slots = [mark.slot for mark in marks(field) if isinstance(mark, Slot)]
            child = children.get(name)
            if "norm" in slots:
                filled = self._norm(child, field)
                if filled is not None:
                    children[name] = filled
            elif child is not None:
                preparer = self.of_corpora(node) if "corpus" in slots else self
                children[name] = preparer._option(with_type(child, part_default(field)), field, slots)
        return replace(node, value=children)

    def _option(self, child: Node, field: FieldInfo, slots: list[str]) -> Node:
        if isinstance(child.value, list):
            return replace(child, value=[self._option(item, field, slots) for item in child.value])
        if slots:
            sides = section_beside(child, field)
            return self.part(child, slots[0]) if sides is None else self.fields(child, sides)
        if isinstance(child.value, str) and any(isinstance(mark, PathMark) for mark in marks(field)):
            return replace(child, value=str(_path(child, self.base)))
        section = next((part for part in types_in(field.annotation) if issubclass(part, BaseModel)), None)
        return child if section is None else self.fields(child, section)

    def _norm(self, child: Node | None, field: FieldInfo) -> Node | None:
        """Return a norm outside `layer.norm`: true = that one; a name or mapping is merged over it."""
        if child is None:
            return self.norm if field.default is not None and not field.is_required() else None
        if child.value is True:
            if self.norm is None:
                self.faults.add(child, "true means the stack's norm, and layer.norm gives none")
                return replace(child, value=None)
            return replace(as_part(self.norm), place=child.place, path=child.path)
        if child.value is None or child.value is False or self.norm is None:
            return child
        return merge(self.norm, child, self.faults.found)


def part_default(field: FieldInfo) -> str:
    """Return the part that an option defaults to; empty if none."""
    is_part = any(isinstance(mark, Slot) for mark in marks(field))
    return field.default if is_part and isinstance(field.default, str) else ""


def with_type(node: Node, default: str) -> Node:
    """Merge options without a type over the default part (`train.schedule: {warmup: 5}`)."""
    if not default or not isinstance(node.value, dict) or not node.value or "type" in node.value or is_per_layer(node):
        return node
    word = Node(default, node.place, under(node.path, "type"), node.key_place)
    return replace(node, value={"type": word, **node.value})


def validated(node: Node, slot: str, faults: Faults) -> Config | None:
    """Return the Config of a prepared part node, or None with its faults added."""
    try:
        return Slot(slot).validate(node.plain())
    except ValidationError as error:
        faults.invalid(node, error, config_class(node, slot))
    except ValueError as error:
        faults.add(node, str(error))
    return None


def _path(node: Node, base: Path | None = None) -> Path:
    """Resolve the path at `node`, relative to `base`, by default to the recipe's file.

    Paths from the command line are relative to the working directory, and so are files that do not ship with their
    recipe.
    """
    here = folder(node) if base is None or node.is_change else base
    if node.place.is_shipped and node.folder is not None and os.path.isfile(node.folder / str(node.value)):
        here = node.folder
    return (here / str(node.value)).absolute()


def folder(node: Node) -> Path:
    """Return the base folder of paths at `node`: that of its file; for shipped recipes the working directory."""
    return Path() if node.place.is_shipped or node.folder is None else node.folder
