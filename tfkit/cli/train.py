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
@click.option("--device", metavar="NAME", help="Short for --set train.device=NAME: cpu, cuda, cuda:1 or auto.")
@ACCEPT
@reads_recipe
def command(recipe: str, out: str | None, resume: bool, force: bool, device: str | None, reading: ReadOptions) -> None:
    """Train the model of RECIPE (a shipped name or a path)."""
    if device is not None:
        reading = replace(reading, sets=(*reading.sets, f"train.device={device}"))
    if resume and force:
        raise click.UsageError("--resume continues a run and --force replaces it; use one of them")
    from tfkit.cli.main import WRONG
    from tfkit.core.errors import RecipeError, TfkitError

    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun, torch warns that all parameters are used
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        loaded = reading.recipe(recipe)
    except TfkitError as error:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(WRONG) from None  # reported by the first process
        raise _with_a_task(error, recipe) if isinstance(error, RecipeError) else error from None
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
