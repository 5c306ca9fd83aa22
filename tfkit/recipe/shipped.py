"""The recipes that come with tfkit: found by name, in the wheel or in the repository."""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("models", "tasks", "studies")


def shipped_recipes() -> dict[str, Path]:
    """The shipped recipes by name (the file's stem), in the order models, tasks, studies."""
    package = Path(__file__).resolve().parents[1]
    in_wheel = package / "_recipes"
    root = in_wheel if in_wheel.is_dir() else package.parent / "recipes"
    return {path.stem: path for folder in FOLDERS for path in sorted((root / folder).glob("*.yaml"))}
