"""`tfkit draw`: drawing of one architecture, or of two with their differences."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.diff import comparable_blueprint, full_name, read, size_notes
from tfkit.cli.new import refuse
from tfkit.cli.options import ReadOptions, reads_recipe
from tfkit.cli.terminal import echo

if TYPE_CHECKING:
    from tfkit.core.blueprint import Blueprint
    from tfkit.recipe.load import Recipe
    from tfkit.recipe.views.row import Notes
    from tfkit.reports.picture import Picture

FORMATS = (".svg", ".html", ".mmd", ".txt", ".png")


@click.command("draw")
@click.argument("recipe", metavar="[RECIPE_OR_RUN]", required=False)
@click.argument("other", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help=f"Output file: {', '.join(FORMATS)}.")
@click.option("--sizes", is_flag=True, help="Show weight shapes, parameters, FLOPs, activations and cache.")
@click.option(
    "--gallery",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write an HTML page with drawings of all shipped models instead.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@reads_recipe
def command(
    recipe: str | None,
    other: str | None,
    out: Path | None,
    sizes: bool,
    gallery: Path | None,
    force: bool,
    reading: ReadOptions,
) -> None:
    """Draw the architecture of a recipe (a shipped name or a path) or of a run folder.

    The suffix of FILE selects the format: .svg, .html (shows the origin of each value on hover), .mmd for Mermaid, .txt
    or .png. Without --out the drawing is printed. With OTHER both are drawn and the differences are marked; --set and
    --variant apply to OTHER, and a variant may follow a name: mine.yaml@wide.
    """
    if gallery is not None:
        if recipe is not None or out is not None or sizes or reading != ReadOptions():
            raise click.UsageError(
                "--gallery draws the shipped models; the only other arguments that it accepts are FILE and --force"
            )
        _write(gallery, (".html",), force, lambda ending: _gallery())
        return
    if recipe is None:
        raise click.UsageError("name a recipe or a run to draw, or use --gallery FILE")
    if out is None:
        from tfkit.reports.picture_text import text

        width = shutil.get_terminal_size().columns
        pictures, changes, _ = _pictures(recipe, other, sizes, reading)
        echo("\n".join([*(text(picture, width) for picture in pictures), *changes]), end="" if not changes else "\n")
        return
    _write(out, FORMATS, force, lambda ending: _drawn(ending, *_pictures(recipe, other, sizes, reading)))


def _write(file: Path, endings: Sequence[str], force: bool, draw: Callable[[str], str | bytes]) -> None:
    """Draw, and write the drawing to `file`. Raise UsageError before drawing if the file cannot be written."""
    from tfkit.core.errors import UsageError
    from tfkit.storage.files import whole

    refuse(file, force)
    if file.suffix not in endings:
        got = f"'{file.suffix}'" if file.suffix else "none"
        raise UsageError(f"{file}: the suffix must be one of {', '.join(endings)}, got {got}")
    drawn = draw(file.suffix)
    with whole(file) as temporary:
        temporary.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode("utf-8"))
    echo(f"{file}: {len(drawn):,} characters" if isinstance(drawn, str) else f"{file}: {len(drawn):,} bytes")


def _drawn(ending: str, pictures: Sequence[Picture], changes: Sequence[str], recipes: Sequence[Recipe]) -> str | bytes:
    """Render the drawings in the format of the file's suffix."""
    from tfkit.reports.gallery import page
    from tfkit.reports.picture_text import mermaid, text
    from tfkit.reports.svg import svg

    if ending == ".html":
        return page(pictures, changes, [one.table(notes=_notes(one)) for one in recipes])
    if ending == ".mmd":
        return mermaid(pictures)
    if ending == ".txt":
        return "\n".join([*(text(one) for one in pictures), *(f"{line}\n" for line in changes)])
    if ending == ".png":
        return _png(svg(pictures, changes))
    return svg(pictures, changes)


def _notes(recipe: Recipe) -> Notes:
    """Return the origins recorded in a run's resolved.yaml."""
    from tfkit.recipe.views.resolved import notes
    from tfkit.training.folder import RESOLVED

    file = recipe.file
    return notes(str(file), recipe.text or "") if file is not None and file.name == RESOLVED else {}


def _png(svg: str) -> bytes:
    from tfkit.core.errors import UsageError
    from tfkit.core.extras import optional

    plain = re.sub(r"<text([^>]*)>((?:(?!</text>).)*<tspan.*?)</text>", _marked_whole, svg)
    try:
        drawn: bytes = optional("cairosvg", "png", "PNG drawings need").svg2png(plain.encode("utf-8"), scale=2)
    except OSError as error:
        raise UsageError(f"PNG output requires the library cairo: {error}; install it, or use .svg") from None
    return drawn


def _marked_whole(line: re.Match[str]) -> str:
    """Mark the whole line as new, since cairosvg does not center a line with several spans."""
    named, words = line[1], re.sub("</?tspan[^>]*>", "", line[2])
    named = named.replace('class="', 'class="new ') if "class=" in named else f'{named} class="new"'
    return f"<text{named}>{words}</text>"


def _pictures(
    source: str, other: str | None, sizes: bool, reading: ReadOptions
) -> tuple[list[Picture], list[str], list[Recipe]]:
    """Return the drawings, the differences as text, and the recipes."""
    from tfkit.cli.options import vocabulary_note
    from tfkit.reports.counts import count
    from tfkit.reports.diff import diff_architectures
    from tfkit.reports.picture import compared, picture

    def shown(name: str, blueprint: Blueprint, note: str | None) -> Picture:
        named = replace(blueprint, name=name)
        return picture(named, count(named) if sizes else None, note)

    if other is None:
        recipe = read(source, reading)
        recipe.tell_warnings()
        drawn = shown(full_name(source, reading), recipe.blueprint(), vocabulary_note(recipe))
        return [drawn], [], [recipe]
    recipes = [read(source, replace(reading, sets=(), variants=())), read(other, reading)]
    names = [source, full_name(other, reading)]
    blueprints = [comparable_blueprint(*recipes), comparable_blueprint(*recipes[::-1])]
    facts = zip(names, recipes, blueprints, strict=True)
    pictures = [shown(name, one, "; ".join(size_notes(name, recipe, one)) or None) for name, recipe, one in facts]
    changes = [
        f"{change.what}{f' ({change.where})' * bool(change.where)}: {change.before} → {change.after}"
        for change in diff_architectures(*blueprints)
    ]
    return list(compared(*pictures)), changes or ["the two architectures are equal"], recipes


def _gallery() -> str:
    from tfkit.recipe.load import load_recipe
    from tfkit.recipe.shipped import shipped_recipes
    from tfkit.reports.gallery import gallery
    from tfkit.reports.recipes import listed

    lines = [line for line in listed(shipped_recipes()) if line.folder == "models"]
    return gallery((line.about, load_recipe(line.name).blueprint()) for line in lines)
