"""The list of shipped recipes, with a one-line description of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console

from tfkit.core.trees import JsonObject
from tfkit.reports.parts_table import rows, say

FOLDERS = {
    "models": "architectures to show, build and start from (tfkit show NAME)",
    "tasks": "models with data and an objective (tfkit train NAME)",
    "studies": "variants compared over seeds (tfkit study NAME)",
}


@dataclass(frozen=True)
class RecipeLine:
    """A recipe: its folder, name and description."""

    folder: str
    name: str
    about: str


def listed(recipes: Mapping[str, Path], word: str = "") -> Iterator[RecipeLine]:
    """Yield the recipes that have `word` in their name or leading comments, ignoring case."""
    for name, path in recipes.items():
        comments = list(_comments(path.read_text(encoding="utf-8")))
        if word.casefold() in " ".join([name, *comments]).casefold():
            yield RecipeLine(path.parent.name, name, comments[0] if comments else "")


def _comments(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").strip()


def as_data(lines: list[RecipeLine]) -> list[JsonObject]:
    """Return the recipes as plain data."""
    return [{"folder": line.folder, "name": line.name, "about": line.about} for line in lines]


def render(lines: list[RecipeLine], console: Console) -> None:
    """Print one table per folder."""
    for number, (folder, group) in enumerate(groupby(lines, lambda line: line.folder)):
        if number:
            console.print()
        say(console, f"{folder}: {FOLDERS[folder]}", "bold")
        rows(console, [(line.name, line.about) for line in group])
