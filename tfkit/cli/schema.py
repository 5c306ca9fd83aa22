"""`tfkit schema`: JSON Schema of the recipe language for editors."""

from __future__ import annotations

from pathlib import Path

import click

from tfkit.cli.options import IMPORTS
from tfkit.cli.terminal import echo
from tfkit.core.output import json_line


@click.command("schema")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE instead of printing.",
)
@IMPORTS
def command(out: Path | None, imports: tuple[str, ...]) -> None:
    """Print the JSON Schema of the recipe language, with every registered part.

    Editors that use it (through yaml-language-server) complete the parts and options of a recipe, show their
    descriptions, and underline errors. --import includes custom parts.
    """
    from tfkit.recipe.imports import import_parts
    from tfkit.recipe.schema import language_schema

    for name in imports:
        import_parts(name)
    text = json_line(language_schema(), indent=2)
    if out is None:
        echo(text)
        return
    from tfkit.storage.files import write_text

    write_text(out, text + "\n")
    echo(f"{out}: to use it in an editor, start a recipe with the relative path of this file, such as")
    echo(f"# yaml-language-server: $schema={out}")
