"""`tfkit explain`: the origin of a value."""

from __future__ import annotations

from pathlib import Path

import click

from tfkit.cli.options import ReadOptions, reads_recipe
from tfkit.cli.terminal import echo_json


@click.command("explain")
@click.argument("recipe", metavar="RECIPE_OR_RUN")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reads_recipe
def command(recipe: str, key: str, as_json: bool, reading: ReadOptions) -> None:
    """Show the value of KEY in a recipe (a shipped name or a path) or a run folder, and where it comes from.

    KEY is a dotted key of the recipe or of the resolved recipe, such as train.optimizer.lr; a whole part or section,
    such as model.layer; or a key of a single layer, such as decoder.layers.3.attention.num_heads.
    """
    from tfkit.recipe.views.resolved import notes
    from tfkit.reports.explain import as_data, explain, render

    folder = Path(recipe)
    file = folder / "resolved.yaml"
    loaded = reading.recipe(str(file) if folder.is_dir() else recipe)
    explanation = explain(loaded, key, notes(str(file), loaded.text or "") if folder.is_dir() else None)
    if as_json:
        echo_json(as_data(explanation))
        return
    from tfkit.core.console import Console

    render(explanation, Console())
