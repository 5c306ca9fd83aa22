"""`tfkit import`: import of a Hugging Face model as a run."""

from __future__ import annotations

import click

from tfkit.cli.options import IMPORTS
from tfkit.cli.terminal import echo

DTYPES = ("float32", "bfloat16", "float16")


@click.command("import")
@click.argument("source", metavar="FOLDER_OR_NAME")
@click.option("--out", metavar="RUN", help="Output folder.  [default: runs/<model name>]")
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True, help="Dtype of the weights.")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
@IMPORTS
def command(source: str, out: str | None, dtype: str, force: bool, imports: tuple[str, ...]) -> None:
    """Import a model: a folder with config.json and safetensors, or the name of a repository on the hub.

    Write a run folder with recipe, weights and tokenizer, for show, generate, verify and other commands. No code of
    the source is executed, and pickled weights are refused. Custom families are registered with --import.
    """
    from tfkit.interop.huggingface.importing import import_model
    from tfkit.recipe.imports import imported

    for name in imports:
        imported(name)
    result = import_model(source, out, dtype, force, imports)
    echo(f"{result.run}: {result.family} ({result.head_class}), {result.parameters:,} parameters in {result.dtype}")
    if result.tokenizer is not None:
        roles = ", ".join(f"{role} {id_}" for role, id_ in result.tokenizer.special_ids.items())
        sources = result.tokenizer.source.vocab_size
        sides = "" if result.tokenizer.source is result.tokenizer else f" for targets, {sources:,} for sources"
        echo(f"tokenizer: {result.tokenizer.vocab_size:,} tokens{sides}; {roles}")
    for note in result.notes:
        echo(note)
    echo(f"Next: tfkit show {result.run}\n      tfkit verify {result.run} --against {source}")
