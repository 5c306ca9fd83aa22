"""`tfkit show`: an architecture as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tfkit.cli.options import BATCH, DTYPE, EXACT_JSON, ReadOptions, Whole, reads_recipe, vocabulary_note
from tfkit.cli.terminal import echo, echo_json
from tfkit.core.bounds import COUNT


@click.command("show")
@click.argument("recipe", metavar="RECIPE_OR_RUN")
@click.option("--length", type=Whole(COUNT), help="Length of the sequence, in tokens.  [default: max_length, else 512]")
@BATCH
@DTYPE
@EXACT_JSON
@reads_recipe
def command(recipe: str, length: int | None, batch: int, dtype: str, as_json: bool, reading: ReadOptions) -> None:
    """Show the architecture of a recipe (a shipped name or a path) or of a run folder.

    Every part is shown with its options, weight shapes and costs.
    """
    import torch

    from tfkit.reports.counts import count
    from tfkit.reports.show import as_data

    folder = Path(recipe)
    loaded = reading.recipe(str(folder / "resolved.yaml") if folder.is_dir() else recipe)
    loaded.tell_warnings()
    blueprint = loaded.blueprint()
    if folder.is_dir():
        blueprint = replace(blueprint, name=folder.resolve().name)
    counts = count(blueprint, length, batch, getattr(torch, dtype))
    data = as_data(blueprint, counts, vocabulary_note(loaded))
    if as_json:
        echo_json(data)
        return
    from tfkit.core.console import Console
    from tfkit.reports.table import render
    from tfkit.training.kept import KEPT
    from tfkit.training.sentences import sentences_in

    render(data, Console())
    if settings := sentences_in(folder / KEPT):
        echo(f"embed: {settings}")
