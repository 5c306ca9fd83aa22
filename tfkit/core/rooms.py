"""Pages that the rooms of the package add, found by their names: commands, sections of a recipe, drawings.

A room that is cut off adds nothing, and no other room names it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[1]


@cache
def pages(name: str) -> list[ModuleType]:
    """Import the module `name` of every room that has one, in the order of the rooms' names."""
    return [import_module(f"tfkit.{file.parent.name}.{name}") for file in sorted(PACKAGE.glob(f"*/{name}.py"))]


def page(name: str) -> ModuleType | None:
    """Import the module `name` of the only room that has one. Return None if that room is cut off."""
    return next(iter(pages(name)), None)
