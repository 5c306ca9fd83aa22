"""`tfkit diff`: differences between two recipes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import BATCH, DTYPE, EXACT_JSON, ReadOptions, Whole, reads_recipe, vocabulary_note
from tfkit.cli.terminal import echo_json
from tfkit.core.bounds import COUNT

if TYPE_CHECKING:
    from tfkit.core.blueprint import Blueprint
    from tfkit.recipe.load import Recipe


@click.command("diff")
@click.argument("a")
@click.argument("b", required=False)
@click.option(
    "--length",
    type=Whole(COUNT),
    help="Length of the sequence, in tokens.  [default: the shorter max_length, else 512]",
)
@BATCH
@DTYPE
@EXACT_JSON
@reads_recipe
def command(
    a: str, b: str | None, length: int | None, batch: int, dtype: str, as_json: bool, reading: ReadOptions
) -> None:
    """Compare A and B: parts, options, parameters, FLOPs, cache, then data and training.

    A and B are shipped names, paths or run folders, optionally with a variant: mine.yaml@wide, mine.yaml@heads=4.
    --set and --variant change B; without B, they change a copy of A. Recipes that describe
    the same architecture are equal.
    """
    import torch

    from tfkit.reports.counts import count, default_length
    from tfkit.reports.diff import diff_architectures, diff_settings
    from tfkit.reports.diff_table import Diff, as_data, render

    if b is None and not (reading.sets or reading.variants):
        raise click.UsageError("pass a second recipe, or --set or --variant to compare A with a changed copy")
    sources = (a, a if b is None else b)
    recipes = read(a, replace(reading, sets=(), variants=())), read(sources[1], reading)
    blueprints = comparable_blueprint(*recipes), comparable_blueprint(*recipes[::-1])
    length = min(map(default_length, blueprints)) if length is None else length
    before, after = (count(blueprint, length, batch, getattr(torch, dtype)) for blueprint in blueprints)
    names = (a, full_name(sources[1], reading))
    notes = [note for facts in zip(names, recipes, blueprints, strict=True) for note in size_notes(*facts)]
    diff = Diff(names, (before, after), diff_architectures(*blueprints), diff_settings(*recipes), notes)
    if as_json:
        echo_json(as_data(diff))
        return
    from tfkit.core.console import Console

    render(diff, Console())


def comparable_blueprint(recipe: Recipe, other: Recipe) -> Blueprint:
    """Return the blueprint of `recipe`; an unknown vocabulary size is taken from the other recipe if it fits."""
    from tfkit.core.errors import RecipeError

    size = None if other.unknown_vocab else other.blueprint().last.vocab_size
    if recipe.unknown_vocab and size is not None and size <= (recipe.vocabulary_bound or size):
        with contextlib.suppress(RecipeError):  # the size may contradict the rest of the recipe
            return recipe.blueprint(size)
    return recipe.blueprint()


def size_notes(name: str, recipe: Recipe, blueprint: Blueprint) -> Iterator[str]:
    """Yield the note about a vocabulary size that is not known yet."""
    note = vocabulary_note(recipe)
    if note is not None:
        size = f"{blueprint.last.vocab_size:,}"
        taken = f"vocabulary unknown until the tokenizer is trained: costs assume {size} tokens, as in the other recipe"
        yield f"{name}: {note if blueprint == recipe.blueprint() else taken}"


def read(text: str, reading: ReadOptions) -> Recipe:
    """Load a recipe by name or path; variants in the name are applied before those of --variant."""
    source, variants = split(text)
    folder = Path(source)
    reading = replace(reading, variants=(*variants, *reading.variants))
    return reading.recipe(str(folder / "resolved.yaml") if folder.is_dir() else source)


def split(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a source into recipe and variants at its @ signs; an existing file with @ in its name takes precedence."""
    from tfkit.recipe.shipped import shipped_recipes

    words = text.split("@")
    for count in range(len(words), 0, -1):
        source = "@".join(words[:count])
        if source in shipped_recipes() or os.path.exists(source):
            return source, tuple(words[count:])
    return words[0], tuple(words[1:])


def full_name(source: str, reading: ReadOptions) -> str:
    """Return the name of a recipe with its variants and overrides."""
    changes = [f"--variant {name}" for name in reading.variants] + [f"--set {text}" for text in reading.sets]
    return " ".join([source, *changes])
