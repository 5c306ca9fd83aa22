"""`tfkit recipes`: list the shipped recipes."""

from __future__ import annotations

import click

from tfkit.cli.terminal import echo_json


@click.command("recipes")
@click.argument("word", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(word: str, as_json: bool) -> None:
    """List the shipped recipes, one per line; with WORD, only those whose name or description contains it."""
    from tfkit.core.console import Console
    from tfkit.core.errors import UsageError
    from tfkit.recipe.shipped import shipped_recipes
    from tfkit.reports.recipes import as_data, listed, render

    lines = list(listed(shipped_recipes(), word))
    if not lines:
        raise UsageError(f"no shipped recipe has {word!r} in its name or description; list all with tfkit recipes")
    if as_json:
        echo_json(as_data(lines))
    else:
        render(lines, Console())
