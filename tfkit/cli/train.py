"""`tfkit train`: from a recipe to a run."""

from __future__ import annotations

import click

from tfkit.cli.options import ACCEPT, Reading, reads_recipe


@click.command("train")
@click.argument("recipe")
@click.option(
    "--out", metavar="RUN", help="The run's folder.  [default: runs/<recipe name>, the next free number behind it]"
)
@click.option("--resume", is_flag=True, help="Go on with what is there, or start; the same line can be repeated.")
@click.option("--force", is_flag=True, help="Replace the run that is there.")
@ACCEPT
@reads_recipe
def command(recipe: str, out: str | None, resume: bool, force: bool, reading: Reading) -> None:
    """Train the model of RECIPE (a shipped name or a path)."""
    if resume and force:
        raise click.UsageError("--resume goes on with a run, --force replaces it; give one of them")
    loaded = reading.recipe(recipe)
    from tfkit.run import train

    train(loaded, out=out, resume=resume, force=force, accept_changes=reading.accept_changes)
