"""`tfkit train`: training of a recipe's model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import ACCEPT, ReadOptions, reads_recipe

if TYPE_CHECKING:
    from tfkit.core.errors import RecipeError


@click.command("train")
@click.argument("recipe")
@click.option(
    "--out",
    metavar="RUN",
    help="Run folder.  [default: runs/<recipe, variants and changed values>, with the next free number]",
)
@click.option("--resume", is_flag=True, help="Continue the run, or start it if missing.")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
@ACCEPT
@reads_recipe
def command(recipe: str, out: str | None, resume: bool, force: bool, reading: ReadOptions) -> None:
    """Train the model of RECIPE (a shipped name or a path)."""
    if resume and force:
        raise click.UsageError("--resume continues a run and --force replaces it; use one of them")
    from tfkit.core.errors import RecipeError

    try:
        loaded = reading.recipe(recipe)
    except RecipeError as error:
        raise _with_a_task(error, recipe) from None
    from tfkit.run import train

    train(loaded, out=out, resume=resume, force=force, accept_changes=reading.accept_changes)


def _with_a_task(error: RecipeError, recipe: str) -> RecipeError:
    """Suggest the nearest trainable recipe if the recipe does not exist. Return other errors unchanged."""
    from tfkit.core.errors import RecipeError
    from tfkit.recipe.shipped import named_like, shipped_tasks

    task = named_like(recipe, shipped_tasks())
    if task is None or os.path.exists(recipe) or any(fault.file != recipe for fault in error.faults):
        return error
    return RecipeError(replace(fault, suggestion=task) for fault in error.faults)
