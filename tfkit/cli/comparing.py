"""`tfkit diff`, `draw`, `look` and `report`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import unified_diff
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli import options
from tfkit.cli.completion import RECIPE, RUN
from tfkit.cli.new import refuse
from tfkit.cli.options import BATCH, DEVICE, DTYPE, PATH, ReadOptions, Whole, reads_recipe, reads_run
from tfkit.cli.terminal import echo, echo_data, echo_json, warn
from tfkit.cli.texts import LONGEST, Text, TextOptions, located, output_to
from tfkit.core.bounds import COUNT
from tfkit.core.errors import RecipeError, RunError, UsageError, optional
from tfkit.core.output import SPEECH
from tfkit.core.rooms import pages
from tfkit.storage.files import whole

if TYPE_CHECKING:
    from tfkit.core.blueprint import Blueprint
    from tfkit.recipe.load import Recipe
    from tfkit.recipe.views.row import Notes
    from tfkit.reports.page import Page
    from tfkit.reports.picture import Picture
    from tfkit.run import Run


@click.command("diff")
@click.argument("a", type=RECIPE)
@click.argument("b", type=RECIPE, required=False)
@click.option(
    "--length",
    type=Whole(COUNT),
    help="Length of the sequence, in tokens.  [default: the shorter max_length, else 512]",
)
@BATCH
@DTYPE
@click.option("--code", is_flag=True, help="Print a unified diff of the models as plain PyTorch instead.")
@reads_recipe
def diff_command(
    a: str, b: str | None, length: int | None, batch: int, dtype: str, code: bool, reading: ReadOptions
) -> None:
    """Compare A and B: parts, options, parameters, FLOPs, cache, then data and training.

    A and B are shipped names, paths or run folders, optionally with a variant: mine.yaml@wide, mine.yaml@heads=4.
    --set and --variant change B; without B, they change a copy of A. Recipes that describe
    the same architecture are equal. With --code, the models are printed as plain PyTorch and their lines compared.
    """
    options.check_code_options(code)
    if b is None and not (reading.sets or reading.variants):
        raise click.UsageError("pass a second recipe, or --set or --variant to compare A with a changed copy")
    sources = (a, a if b is None else b)
    recipes = read(a, replace(reading, sets=(), variants=())), read(sources[1], reading)
    if code:
        printed = options.printer().printed
        first, second = (printed(recipe, usable=False).splitlines() for recipe in recipes)
        lines = list(unified_diff(first, second, a, full_name(sources[1], reading), lineterm=""))
        echo("\n".join(lines) or "the code of the two models is the same")
        return
    import torch

    from tfkit.reports.counts import count, default_length
    from tfkit.reports.diff import diff_architectures, diff_settings
    from tfkit.reports.table import Diff, as_data, render_diff

    blueprints = comparable_blueprint(*recipes), comparable_blueprint(*recipes[::-1])
    length = min(map(default_length, blueprints)) if length is None else length
    before, after = (count(blueprint, length, batch, getattr(torch, dtype)) for blueprint in blueprints)
    names = (a, full_name(sources[1], reading))
    notes = [note for facts in zip(names, recipes, blueprints, strict=True) for note in size_notes(*facts)]
    diff = Diff(names, (before, after), diff_architectures(*blueprints), diff_settings(*recipes), notes)
    echo_data(as_data(diff), partial(render_diff, diff))


def comparable_blueprint(recipe: Recipe, other: Recipe) -> Blueprint:
    """Return the blueprint of `recipe`; an unknown vocabulary size is taken from the other recipe if it fits."""
    size = None if other.unknown_vocab else other.blueprint().last.vocab_size
    if recipe.unknown_vocab and size is not None and size <= (recipe.vocabulary_bound or size):
        with contextlib.suppress(RecipeError):  # the size may contradict the rest of the recipe
            return recipe.blueprint(size)
    return recipe.blueprint()


def size_notes(name: str, recipe: Recipe, blueprint: Blueprint) -> Iterator[str]:
    """Yield the note about a vocabulary size that is not known yet."""
    note = options.vocabulary_note(recipe)
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
    from tfkit.recipe.compose import shipped_recipes

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


FORMATS = (".svg", ".html", ".mmd", ".txt", ".png")


@click.command("draw")
@click.argument("recipe", type=RECIPE, metavar="[RECIPE_OR_RUN]", required=False)
@click.argument("other", type=RECIPE, required=False)
@click.option("--out", type=PATH, metavar="FILE", help=f"Output file: {', '.join(FORMATS)}.")
@click.option("--sizes", is_flag=True, help="Show weight shapes, parameters, FLOPs, activations and cache.")
@click.option(
    "--gallery", type=PATH, metavar="FILE", help="Write an HTML page with drawings of all shipped models instead."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@reads_recipe
def draw_command(
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
    or .png. Without --out, the drawing is printed. With OTHER, both are drawn and the differences are marked. --set and
    --variant apply to OTHER; a variant may also follow a name, as in mine.yaml@wide.
    """
    if gallery is not None:
        if recipe is not None or out is not None or sizes or reading != ReadOptions():
            raise click.UsageError(
                "--gallery draws the shipped models; the only other arguments that it accepts are FILE and --force"
            )
        return write_whole(gallery, (".html",), force, lambda ending: _gallery())
    if recipe is None:
        raise click.UsageError("name a recipe or a run to draw, or use --gallery FILE")
    if out is None:
        from tfkit.reports.picture_text import text

        width = shutil.get_terminal_size().columns
        pictures, changes, _ = _pictures(recipe, other, sizes, reading)
        drawn = [text(picture, width) for picture in pictures]
        end = "\n" if changes else ""
        data = {"drawings": drawn, "changes": changes}
        return echo_data(data, lambda _: echo("\n".join([*drawn, *changes]), end=end))
    write_whole(out, FORMATS, force, lambda ending: _drawn(ending, *_pictures(recipe, other, sizes, reading)))


def write_whole(file: Path, endings: Sequence[str], force: bool, draw: Callable[[str], str | bytes]) -> None:
    """Write what `draw` returns to a file, and print its size. Raise UsageError first if it cannot be written."""
    unit, size = write_quietly(file, endings, force, draw)
    echo_data({"file": str(file), unit: size}, lambda _: echo(f"{file}: {size:,} {unit}"))


def write_quietly(
    file: Path, endings: Sequence[str], force: bool, draw: Callable[[str], str | bytes]
) -> tuple[str, int]:
    """Write what `draw` returns to a file, as `write_whole` does. Return its size with the unit."""
    refuse(file, force)
    if file.suffix not in endings:
        got = f"'{file.suffix}'" if file.suffix else "none"
        raise UsageError(f"{file}: the suffix must be one of {', '.join(endings)}, got {got}")
    drawn = draw(file.suffix)
    with whole(file) as temporary:
        temporary.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode("utf-8"))
    return "characters" if isinstance(drawn, str) else "bytes", len(drawn)


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
    from tfkit.runs.folder import RESOLVED

    file = recipe.file
    return notes(str(file), recipe.text or "") if file is not None and file.name == RESOLVED else {}


def _png(svg: str) -> bytes:
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
    from tfkit.reports.counts import count
    from tfkit.reports.diff import diff_architectures
    from tfkit.reports.picture import compared, picture

    def shown(name: str, blueprint: Blueprint, note: str | None) -> Picture:
        named = replace(blueprint, name=name)
        return picture(named, count(named) if sizes else None, note)

    if other is None:
        recipe = read(source, reading)
        recipe.tell_warnings()
        drawn = shown(full_name(source, reading), recipe.blueprint(), options.vocabulary_note(recipe))
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
    from tfkit.recipe.compose import shipped_recipes
    from tfkit.recipe.load import load_recipe
    from tfkit.reports.gallery import gallery
    from tfkit.reports.parts_table import listed

    lines = [line for line in listed(shipped_recipes()) if line.folder == "models"]
    return gallery((line.about, load_recipe(line.name).blueprint()) for line in lines)


@click.command("look")
@click.argument("run", type=RUN)
@click.argument("text", required=False)
@click.option("--input", "file", metavar="FILE", help="Read the text, picture, sound or array from FILE.")
@click.option("--target", metavar="TEXT", help="Target of an encoder-decoder; by default the generated text.")
@click.option("--head", metavar="PLACE:N", help="Print the attention weights of each token in one head.")
@click.option("--token", metavar="TOKEN", help="Print the attention weights of one token, largest first.")
@click.option("--out", metavar="FILE", help="Write a self-contained HTML page with all attention maps.")
@DEVICE
@reads_run
def look_command(
    run: str,
    text: str | None,
    file: str | None,
    target: str | None,
    head: str | None,
    token: str | None,
    out: str | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Show what the attention heads of RUN (a run folder) attend to in TEXT, or in the first input of --input.

    Heads are ranked by the entropy of their weights and listed with their mean distance and induction score.
    """
    from tfkit.core.figures import Console
    from tfkit.reports.attention import as_data, page, print_head, print_heads, print_token

    if head is not None and (token is not None or SPEECH.data):
        raise UsageError("--head prints the rows of one head; remove --token and --json")
    for argument in (text, target):
        if argument is not None and os.path.isfile(argument):
            raise UsageError(f"'{argument}' is a file; pass a text, or the file with --input")
    if out == "-" and (head is not None or token is not None or SPEECH.data):
        raise UsageError("--out - prints the page; remove --head, --token and --json")
    loaded = reading.run(run, device)
    shown = _first(loaded, text, file)
    with located([shown]):
        maps = loaded.attention(shown.values[0], target)
    if out is not None:
        with output_to(out) as output:
            output.text(page(maps, f"Attention of {run}: {shown.values[0]}"))
    if SPEECH.data:
        echo_json(as_data(maps, token))
    elif head is not None:
        print_head(maps, head, Console())
    elif token is not None:
        print_token(maps, token, Console())
    elif out is None:
        print_heads(maps, Console())
    elif out != "-":
        echo(f"the page: {out}")


def _first(run: Run, text: str | None, file: str | None) -> Text:
    """Return TEXT, or the first input of the file; warn about others. Raise UsageError unless one of both is given."""
    if (text is None) == (file is None):
        raise UsageError("pass a TEXT, or a file with --input")
    inputs = TextOptions(() if text is None else (text,), file)
    texts = next(inputs.arrays(run, LONGEST)) if run.reads_vectors else inputs.all()
    if texts[1:]:
        warn(f"tfkit: {file}: has {len(texts):,} inputs; only the first is shown")
    return texts[0]


@click.command("report")
@click.argument("folder", metavar="RUN_OR_STUDY", type=PATH)
@click.option("--out", type=PATH, metavar="FILE.html", help="Output file.  [default: report.html; none with --json]")
@click.option("--text", metavar="TEXT", help="Text whose attention is shown.  [default: the first sample]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@DEVICE
@reads_run
def report_command(
    folder: Path, out: Path | None, text: str | None, force: bool, device: str, reading: ReadOptions
) -> None:
    """Write one page to hand in: drawing, costs, curve, scores, samples, attention, and how to do it again.

    For a study, its results replace the curve and scores; the other sections show a run of its baseline. The file
    opens without a network and can be printed. With --json the data of the page are printed.
    """

    @cache
    def made() -> Page:
        if not folder.is_dir():
            raise RunError(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}")
        load = partial(_run, reading=reading, device=device)
        page: Page | None = next(filter(None, (room.handout(folder, load, text) for room in pages("handout"))), None)
        if page is None:
            raise UsageError(f"{folder}: contains neither a run nor a study")
        return page

    file = out or (None if SPEECH.data else Path("report.html"))
    size = None if file is None else write_quietly(file, (".html",), force, lambda ending: made().html())[1]
    data = {"page": None if file is None else str(file), "folder": str(folder), **made().as_data()}
    echo_data(data, lambda _: echo(f"{file}: {size:,} characters"))


def _run(folder: Path, reading: ReadOptions, device: str) -> Run:
    """Load a run, also one without weights."""
    from tfkit.run import Run
    from tfkit.runs.folder import RESOLVED, WEIGHTS

    if (folder / WEIGHTS).is_file():
        return reading.run(str(folder), device)
    return Run(folder, reading.recipe(str(folder / RESOLVED)).named(folder.resolve().name))
