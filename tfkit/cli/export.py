"""`tfkit export`: a run in the format of others."""

from __future__ import annotations

import click

from tfkit.cli.options import ReadOptions, reads_run
from tfkit.cli.terminal import echo

FORMATS = ("huggingface",)


@click.command("export")
@click.argument("run")
@click.argument("folder")
@click.option("--to", "form", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="The format.")
@click.option("--force", is_flag=True, help="Replace the model that is there.")
@reads_run
def command(run: str, folder: str, form: str, force: bool, reading: ReadOptions) -> None:
    """Export RUN (a run's folder) to FOLDER, in the format that transformers loads.

    Where the architecture is one that transformers knows, the folder holds nothing but its files. Any other brings its
    own code, which transformers runs with trust_remote_code=True; tfkit need not be installed there.
    """
    from tfkit.interop.huggingface.exporting import export_model

    made = export_model(reading.run(run, "cpu"), folder, force)
    if made.theirs is None:
        echo(f"{made.folder}: no architecture of transformers; the folder brings tfkit's own code")
        for fault in made.why:
            echo(f"  {fault}")
        more = ", trust_remote_code=True"
    else:
        echo(f"{made.folder}: {made.theirs.config['model_type']} ({made.theirs.head_class})")
        more = ""
    echo(f'Load: transformers.{made.auto_class}.from_pretrained("{made.folder}"{more})')
