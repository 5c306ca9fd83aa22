"""`tfkit look`: attention weights of a run's heads for a text, picture, sound or array."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import DEVICE, EXACT_JSON, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json, warn
from tfkit.cli.texts import LONGEST, Text, TextOptions, located, output_to
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from tfkit.run import Run


@click.command("look")
@click.argument("run")
@click.argument("text", required=False)
@click.option("--input", "file", metavar="FILE", help="Read the text, picture, sound or array from FILE.")
@click.option("--target", metavar="TEXT", help="Target of an encoder-decoder; by default the generated text.")
@click.option("--head", metavar="PLACE:N", help="Print the attention weights of each token in one head.")
@click.option("--token", metavar="TOKEN", help="Print the attention weights of one token, largest first.")
@click.option("--out", metavar="FILE", help="Write a self-contained HTML page with all attention maps.")
@EXACT_JSON
@DEVICE
@reads_run
def command(
    run: str,
    text: str | None,
    file: str | None,
    target: str | None,
    head: str | None,
    token: str | None,
    out: str | None,
    as_json: bool,
    device: str,
    reading: ReadOptions,
) -> None:
    """Show what the attention heads of RUN (a run folder) attend to in TEXT, or in the first input of --input.

    Heads are ranked by the entropy of their weights and listed with their mean distance and induction score.
    """
    from tfkit.core.console import Console
    from tfkit.reports.attention import as_data, page, print_head, print_heads, print_token

    if head is not None and (token is not None or as_json):
        raise UsageError("--head prints the rows of one head; remove --token and --json")
    for argument in (text, target):
        if argument is not None and os.path.isfile(argument):
            raise UsageError(f"'{argument}' is a file; pass a text, or the file with --input")
    if out == "-" and (head is not None or token is not None or as_json):
        raise UsageError("--out - prints the page; remove --head, --token and --json")
    loaded = reading.run(run, device)
    shown = _first(loaded, text, file)
    with located([shown]):
        maps = loaded.attention(shown.values[0], target)
    if out is not None:
        with output_to(out) as output:
            output.text(page(maps, f"Attention of {run}: {shown.values[0]}"))
    if as_json:
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
