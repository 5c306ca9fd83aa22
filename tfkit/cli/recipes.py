"""`tfkit recipes`, `check`, `show`, `explain` and `schema`."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli import options
from tfkit.cli.completion import RECIPE
from tfkit.cli.main import WRONG, complain, faults_of
from tfkit.cli.options import BATCH, DTYPE, IMPORTS, PATH, ReadOptions, Whole, reads_recipe
from tfkit.cli.terminal import LEAST, echo, echo_data, echo_json
from tfkit.core.bounds import COUNT
from tfkit.core.errors import Fault, RecipeError, RecipeWarning, TfkitError, UsageError
from tfkit.core.machine import readable_bytes
from tfkit.core.output import SPEECH, json_line
from tfkit.storage.files import write_text

if TYPE_CHECKING:
    from tfkit.recipe.load import Recipe


@click.command("recipes")
@click.argument("word", required=False, default="")
def recipes_command(word: str) -> None:
    """List the shipped recipes, one per line; with WORD, only those whose name or description contains it."""
    from tfkit.recipe.compose import shipped_recipes
    from tfkit.reports.parts_table import listed, render

    lines = list(listed(shipped_recipes(), word))
    if not lines:
        raise UsageError(f"no shipped recipe has {word!r} in its name or description; list all with tfkit recipes")
    echo_data([line._asdict() for line in lines], partial(render, lines))


SHOWN = 2  # number of examples shown per split
NOTEWORTHY = 64 * 2**30  # report weights larger than this, in bytes


@click.command("check")
@click.argument("files", type=RECIPE, nargs=-1, required=True, metavar="RECIPE...")
@reads_recipe
@click.pass_context
def check_command(ctx: click.Context, files: tuple[str, ...], reading: ReadOptions) -> None:
    """Check each RECIPE (a shipped name or a path); print the size of its model and examples of its data.

    Every fault is printed, including faults in the first examples of the data.
    """
    answers: list[dict[str, object]] = []
    for file in files:
        with warnings.catch_warnings(record=SPEECH.data) as found:
            answers.append({"recipe": file, "ok": False, "summary": None, "examples": {}, "faults": []})
            try:
                answers[-1] |= {"ok": True, **_checked(file, reading)}
            except Exception as error:
                named = isinstance(error, TfkitError) and not isinstance(error, RecipeError)
                told = UsageError(f"{file}: {error}") if named else error
                if not (isinstance(told, TfkitError) if SPEECH.data else complain(told)):
                    raise
                answers[-1]["faults"] = faults_of(told)
        answers[-1]["warnings"] = [fault for one in found or () for fault in faults_of(one.message)]
    if SPEECH.data:
        echo_json({"recipes": answers})
    if not all(answer["ok"] for answer in answers):
        ctx.exit(WRONG)


def _checked(file: str, reading: ReadOptions) -> dict[str, object]:
    """Check a recipe; print what it describes, or return it for --json. Raise RecipeError with its faults."""
    from tfkit.recipe.keys import LEAVES
    from tfkit.reports.explain import resets
    from tfkit.training.splits import turns

    recipe = reading.recipe(file)
    given = (file, reading.sets, reading.imports, reading.trust)
    leaves = () if reading.variants else recipe.leaves
    compared = "".join(LEAVES[key].summary(*given) for key in leaves)
    summary = _summary(recipe)
    examples = _first_examples(recipe)
    for doubt in resets(recipe):
        warnings.warn(RecipeWarning(doubt), stacklevel=1)
    shown = {split: [part for one in found[:SHOWN] for part in turns(one)] for split, found in examples.items()}
    if not SPEECH.data:
        lines = [line for split, found in shown.items() for line in _lines(split, found)]
        echo("\n".join([f"{file}: ok ({summary}{compared})", *lines]))
    return {"summary": f"{summary}{compared}", "examples": shown}


def _first_examples(recipe: Recipe) -> dict[str, list[dict[str, str]]]:
    """Return the first examples of each split and show warnings. Raise RecipeError for unusable data.

    A missing file is an error only if the user's own recipe names it.
    """
    from tfkit.recipe.settings.agreement import CORPORA

    recipe.tell_warnings()
    examples: dict[str, list[dict[str, str]]] = {}
    faults: list[Fault] = []
    if recipe.data is not None:
        from tfkit.training.setup import refused_texts
        from tfkit.training.splits import first_examples, leaks

        examples, faults = first_examples(recipe)
        faults += refused_texts(recipe) if recipe.objective is not None and not faults else []
    for fault in recipe.missing_files():
        if fault.path.startswith(CORPORA) and not fault.place.is_shipped:
            faults.append(fault)
        else:
            warnings.warn(RecipeWarning(fault), stacklevel=1)
    if faults:
        raise RecipeError(faults)
    for fault in leaks(recipe) if recipe.data is not None else ():
        warnings.warn(RecipeWarning(fault), stacklevel=1)
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
    from tfkit.training.setup import check_widths

    blueprint = recipe.blueprint()
    parameters = count_parameters(blueprint)
    check_widths(blueprint)
    text = f"{blueprint.type.part.part_name}, {parameters:,} parameters"
    if 4 * parameters >= NOTEWORTHY:
        text += f", {readable_bytes(4 * parameters)} of weights in float32"
    note = options.vocabulary_note(recipe)
    return text if note is None else f"{text}; {note}"


@click.command("show")
@click.argument("recipe", type=RECIPE, metavar="RECIPE_OR_RUN")
@click.option("--length", type=Whole(COUNT), help="Length of the sequence, in tokens.  [default: max_length, else 512]")
@BATCH
@DTYPE
@click.option("--code", is_flag=True, help="Print the model as one file of plain PyTorch instead.")
@click.option("--with", "inputs", multiple=True, metavar="NAMES", help="More inputs: attention_mask,token_type_ids.")
@click.option("--out", type=PATH, metavar="FILE.py", help="Write the code to FILE.py.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.py.")
@reads_recipe
def show_command(
    recipe: str,
    length: int | None,
    batch: int,
    dtype: str,
    code: bool,
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    reading: ReadOptions,
) -> None:
    """Show the architecture of a recipe (a shipped name or a path) or of a run folder.

    Every part is shown with its options, weight shapes and costs.

    With --code, the model is printed as one file of plain PyTorch, which does not need tfkit. Its weights have the
    names of a run's, and its outputs are compared with the model's before anything is printed.
    """
    options.check_code_options(code)
    folder = Path(recipe)
    loaded = reading.recipe(str(folder / "resolved.yaml") if folder.is_dir() else recipe)
    loaded = loaded.named(folder.resolve().name) if folder.is_dir() else loaded
    loaded.tell_warnings()
    if code:
        _print_code(loaded, inputs, out, force)
        return
    import torch

    from tfkit.reports.counts import count
    from tfkit.reports.show import as_data
    from tfkit.reports.table import render
    from tfkit.runs.kept import KEPT, sentences_in

    blueprint = loaded.blueprint()
    counts = count(blueprint, length, batch, getattr(torch, dtype))
    data = as_data(blueprint, counts, options.vocabulary_note(loaded))
    echo_data(data, partial(render, data))
    if not SPEECH.data and (settings := sentences_in(folder / KEPT)):
        echo(f"embed: {settings}")


def _print_code(recipe: Recipe, inputs: Sequence[str], out: Path | None, force: bool) -> None:
    """Print a model as plain PyTorch, or write it to `out`."""
    names = [name.strip() for given in inputs for name in given.split(",")]
    printed = partial(options.printer().printed, recipe, [name for name in names if name])
    if out is None:
        echo(printed(), end="")
        return
    from tfkit.cli.comparing import write_whole

    write_whole(out, (".py",), force, lambda ending: printed())


@click.command("explain")
@click.argument("recipe", type=RECIPE, metavar="RECIPE_OR_RUN")
@click.argument("key")
@reads_recipe
def explain_command(recipe: str, key: str, reading: ReadOptions) -> None:
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
    echo_data(as_data(explanation), partial(render, explanation))


@click.command("schema")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE instead of printing."
)
@click.option("--answers", is_flag=True, help="Print the schemas of what the commands answer with --json instead.")
@IMPORTS
def schema_command(out: Path | None, answers: bool, imports: tuple[str, ...]) -> None:
    """Print the JSON Schema of the recipe language, with every registered part; it is JSON with and without --json.

    Editors that use it (through yaml-language-server) complete the parts and options of a recipe, show their
    descriptions, and underline errors. --import includes custom parts.
    """
    from tfkit.cli.answers import answers_schema
    from tfkit.recipe.imports import import_parts
    from tfkit.recipe.schema import language_schema

    for name in imports:
        import_parts(name)
    text = json_line(answers_schema() if answers else language_schema(), indent=2)
    if out is None:
        echo(text)
        return
    write_text(out, text + "\n")
    if SPEECH.data:
        return echo_json({"file": str(out)})
    if answers:
        return echo(f"{out}: the schemas of the answers")
    echo(f"{out}: to use it in an editor, start a recipe with the relative path of this file, such as")
    echo(f"# yaml-language-server: $schema={out}")
