"""`tfkit import`: import of a Hugging Face model as a run."""

from __future__ import annotations

import click

from tfkit.cli.options import IMPORTS
from tfkit.cli.terminal import echo

DTYPES = ("float32", "bfloat16", "float16")


@click.command("import")
@click.argument("source", metavar="FOLDER_OR_NAME")
@click.option("--out", metavar="RUN", help="Where to write.  [default: runs/<its name>]")
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True, help="Type of the weights.")
@click.option("--force", is_flag=True, help="Rename a run that is there to NAME.old, and write a new one.")
@IMPORTS
def command(source: str, out: str | None, dtype: str, force: bool, imports: tuple[str, ...]) -> None:
    """Import a model: a folder with config.json and safetensors, or the name of a repository on the hub.

    Writes a run's folder with a recipe, the weights and the tokenizer, which show, generate and verify take. Weights
    are read, never run: pickled ones are refused. A family of your own comes in with --import.
    """
    from tfkit.interop.huggingface.importing import import_model
    from tfkit.recipe.imports import imported

    for name in imports:
        imported(name)
    made = import_model(source, out, dtype, force, imports)
    echo(f"{made.run}: {made.family} ({made.head_class}), {made.parameters:,} parameters in {made.dtype}")
    if made.tokenizer is not None:
        roles = ", ".join(f"{role} {id_}" for role, id_ in made.tokenizer.special_ids.items())
        sources = made.tokenizer.source.vocab_size
        beside = "" if made.tokenizer.source is made.tokenizer else f" of targets, {sources:,} of sources"
        echo(f"tokenizer: {made.tokenizer.vocab_size:,} tokens{beside}; {roles}")
    for note in made.notes:
        echo(note)
    echo(f"Type: tfkit show {made.run}\n      tfkit verify {made.run} --against {source}")
