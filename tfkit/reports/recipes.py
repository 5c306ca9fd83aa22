"""The list of shipped recipes, with a one-line description of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from tfkit.core.trees import JsonObject
from tfkit.reports.parts_table import rows, say

FOLDERS = {
    "models": "architectures to show, build and start from (tfkit show NAME)",
    "tasks": "models with data and an objective (tfkit train NAME)",
    "studies": "variants compared over seeds (tfkit study NAME)",
}


class RecipeLine(NamedTuple):
    """A recipe: its folder, name and description."""

    folder: str
    name: str
    about: str


def listed(recipes: Mapping[str, Path], word: str = "") -> Iterator[RecipeLine]:
    """Yield the recipes that have `word` in their name or leading comments, ignoring case."""
    for name, path in recipes.items():
        lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        comments = [line.removeprefix("#").strip() for line in lines]
        if word.casefold() in " ".join([name, *comments]).casefold():
            yield RecipeLine(path.parent.name, name, comments[0] if comments else "")


def as_data(lines: list[RecipeLine]) -> list[JsonObject]:
    """Return the recipes as plain data."""
    return [line._asdict() for line in lines]


def render(lines: list[RecipeLine], console: Console) -> None:
    """Print one table per folder."""
    for number, (folder, group) in enumerate(groupby(lines, lambda line: line.folder)):
        if number:
            console.print()
        say(console, f"{folder}: {FOLDERS[folder]}", "bold")
        rows(console, [(line.name, line.about) for line in group])
