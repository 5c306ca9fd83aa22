"""`tfkit check`: the faults of recipes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import ReadOptions, reads_recipe, vocabulary_note
from tfkit.cli.terminal import echo

if TYPE_CHECKING:
    from tfkit.recipe.load import Recipe

NOTEWORTHY = 64 * 2**30  # bytes of weights from which on their size is worth a word


@click.command("check")
@click.argument("files", nargs=-1, required=True, metavar="RECIPE...")
@reads_recipe
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], reading: ReadOptions) -> None:
    """Check each RECIPE (a shipped name or a path): print the size of its model, or every fault."""
    from tfkit.cli.main import WRONG, complain
    from tfkit.core.errors import RecipeError, RecipeWarning, TfkitError, UsageError

    wrong = False
    for file in files:
        try:
            recipe = reading.recipe(file)
            compared = "" if recipe.study is None or reading.variants else _compared(file, reading)
            echo(f"{file}: ok ({_summary(recipe)}{compared})")
            recipe.tell_warnings()
            for fault in recipe.missing_files():  # they may be elsewhere, or come later
                warnings.warn(RecipeWarning(fault), stacklevel=1)
        except Exception as error:
            named = isinstance(error, TfkitError) and not isinstance(error, RecipeError)
            if not complain(UsageError(f"{file}: {error}") if named else error):
                raise
            wrong = True
    if wrong:
        ctx.exit(WRONG)


def _compared(file: str, reading: ReadOptions) -> str:
    """How many variants the study in a recipe compares; raises RecipeError with the faults of all of them."""
    from tfkit.studies.arms import StudySource
    from tfkit.studies.planning import check_study

    found = check_study(StudySource(file, reading.sets, reading.imports, reading.trust))
    return f"; a study of {found:,} variants"


def _summary(recipe: Recipe) -> str:
    from tfkit.reports.counts import count_parameters

    blueprint = recipe.blueprint()
    parameters = count_parameters(blueprint)
    text = f"{blueprint.type.part.part_name}, {parameters:,} parameters"
    if 4 * parameters >= NOTEWORTHY:
        from tfkit.reports.table import size

        text += f", {size(4 * parameters)} of weights in float32"
    note = vocabulary_note(recipe)
    return text if note is None else f"{text}; {note}"
