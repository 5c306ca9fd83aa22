"""Lookup of shipped recipes by name, in the wheel or in the repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfkit.core.synonyms import nearest

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
