"""Recipes as text: block style YAML, short mappings in flow style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfkit.core.errors import RecipeError
from tfkit.recipe.overlays.merge import is_section, merge
from tfkit.recipe.overlays.overlay import override_overlay
from tfkit.recipe.text.node import inline, under
from tfkit.recipe.text.source import parse

WIDTH = 120  # maximum line width


def written(data: Mapping[str, Any]) -> str:
    """Return the text of a recipe that parses to `data`."""
    lines = [line for key, value in data.items() for line in _lines(key, value, key, 0)]
    return "".join(f"{line}\n" for line in lines) or "{}\n"


def edited(text: str, key: str, value: Any) -> str:
    """Return the reformatted text with `value` merged at the dotted `key` (R20).

    Raises RecipeError for an invalid text or key.
    """
    root, faults = parse(text, "<text>")
    overlay = override_overlay(key, value, faults)
    merged = root if overlay is None else merge(root, overlay, faults)
    if faults:
        raise RecipeError(faults)
    return written(merged.plain())


def _lines(key: str, value: Any, path: str, indent: int) -> list[str]:
    """Format a key and its value in block style; short mappings that are not sections become one line."""
    head = f"{' ' * indent}{inline(key)}:"
    line = f"{head} {inline(value)}"
    if not isinstance(value, dict) or not value:
        return [line]
    spread = "." not in path or (is_section(path) and any(isinstance(child, dict) for child in value.values()))
    if not spread and len(line) <= WIDTH:
        return [line]
    return [head, *(one for name, child in value.items() for one in _lines(name, child, under(path, name), indent + 2))]
