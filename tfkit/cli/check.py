"""`tfkit check`: validation of recipes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import ReadOptions, reads_recipe, vocabulary_note
from tfkit.cli.terminal import LEAST, echo
from tfkit.core.output import json_line

if TYPE_CHECKING:
    from tfkit.recipe.load import Recipe

SHOWN = 2  # number of examples shown per split
NOTEWORTHY = 64 * 2**30  # report weights larger than this, in bytes


@click.command("check")
@click.argument("files", nargs=-1, required=True, metavar="RECIPE...")
@reads_recipe
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], reading: ReadOptions) -> None:
    """Check each RECIPE (a shipped name or a path); print the size of its model and examples of its data.

    Every fault is printed, including faults in the first examples of the data.
    """
    from tfkit.cli.main import WRONG, complain
    from tfkit.core.errors import RecipeError, TfkitError, UsageError
    from tfkit.recipe.keys import LEAVES
    from tfkit.training.splits import turns

    wrong = False
    for file in files:
        try:
            recipe = reading.recipe(file)
            given = (file, reading.sets, reading.imports, reading.trust)
            leaves = () if reading.variants else recipe.leaves
            compared = "".join(LEAVES[key].summary(*given) for key in leaves)
            summary = _summary(recipe)
            examples = _first_examples(recipe)
            echo(f"{file}: ok ({summary}{compared})")
            for split, found in examples.items():
                for line in _lines(split, [part for example in found[:SHOWN] for part in turns(example)]):
                    echo(line)
        except Exception as error:
            named = isinstance(error, TfkitError) and not isinstance(error, RecipeError)
            if not complain(UsageError(f"{file}: {error}") if named else error):
                raise
            wrong = True
    if wrong:
        ctx.exit(WRONG)


def _first_examples(recipe: Recipe) -> dict[str, list[dict[str, str]]]:
    """Return the first examples of each split and show warnings. Raise RecipeError for unusable data.

    A missing file is an error only if the user's own recipe names it.
    """
    from tfkit.core.errors import Fault, RecipeError, RecipeWarning
    from tfkit.recipe.settings.files import CORPORA

    recipe.tell_warnings()
    examples: dict[str, list[dict[str, str]]] = {}
    faults: list[Fault] = []
    if recipe.data is not None:
        from tfkit.training.splits import first_examples

        examples, faults = first_examples(recipe)
    for fault in recipe.missing_files():
        if fault.path.startswith(CORPORA) and not fault.place.is_shipped:
            faults.append(fault)
        else:
            warnings.warn(RecipeWarning(fault), stacklevel=1)
    if faults:
        raise RecipeError(faults)
    return examples


def _lines(split: str, examples: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a line per example, fitted to the terminal width; short fields leave space for long ones."""
    from rich.cells import cell_len, set_cell_size

    width = max(shutil.get_terminal_size().columns, LEAST)
    for example in examples:
        texts = [_shown(text, width) for text in example.values()]
        names = [f"{split}:", *example]
        room, limit = width - sum(len(name) + 1 for name in names) - 2 * len(texts), 0
        for left, size in zip(range(len(texts), 0, -1), sorted(map(cell_len, texts)), strict=True):
            limit = max(room // left, 0)
            if size > limit:
                break
            room -= size
        cut = [f"{set_cell_size(text, max(limit - 3, 0))}..." for text in texts]
        shown = [text if cell_len(text) <= limit else short for text, short in zip(texts, cut, strict=True)]
        yield f"  {split}: " + "  ".join(f"{name} {text}" for name, text in zip(example, shown, strict=True))


def _shown(value: str, width: int) -> str:
    """Quote a text; describe an array by name, shape and range."""
    from tfkit.training.splits import described

    return described(value) or json_line(value[:width])


def _summary(recipe: Recipe) -> str:
    from tfkit.reports.counts import count_parameters

    blueprint = recipe.blueprint()
    parameters = count_parameters(blueprint)
    text = f"{blueprint.type.part.part_name}, {parameters:,} parameters"
    if 4 * parameters >= NOTEWORTHY:
        from tfkit.core.machine import readable_bytes

        text += f", {readable_bytes(4 * parameters)} of weights in float32"
    note = vocabulary_note(recipe)
    return text if note is None else f"{text}; {note}"
