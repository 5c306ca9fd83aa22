"""`tfkit look`: attention of a run's heads in a text."""

from __future__ import annotations

import os

import click

from tfkit.cli.options import DEVICE, EXACT_JSON, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json
from tfkit.cli.texts import output_to


@click.command("look")
@click.argument("run")
@click.argument("text")
@click.option("--target", metavar="TEXT", help="The target of an encoder-decoder; by default what it generates.")
@click.option("--head", metavar="PLACE:N", help="Print what each token attends to in one head.")
@click.option("--token", metavar="TOKEN", help="Print what one token attends to, the largest weights first.")
@click.option("--out", metavar="FILE", help="Write a page with every map, which opens without a network.")
@EXACT_JSON
@DEVICE
@reads_run
def command(
    run: str,
    text: str,
    target: str | None,
    head: str | None,
    token: str | None,
    out: str | None,
    as_json: bool,
    device: str,
    reading: ReadOptions,
) -> None:
    """Show what the attention heads of RUN (a run's folder) attend to in TEXT.

    Heads are ranked by the entropy of their weights; the mean distance and the induction score stand beside it.
    """
    from tfkit.core.console import Console
    from tfkit.core.errors import UsageError
    from tfkit.reports.attention import as_data, page, print_head, print_heads, print_token

    if head is not None and (token is not None or as_json):
        raise UsageError("--head prints the rows of one head; leave --token and --json out")
    for given in (text, target):
        if given is not None and os.path.isfile(given):
            raise UsageError(f"'{given}' is a file; tfkit look takes a text")
    if out == "-" and (head is not None or token is not None or as_json):
        raise UsageError("--out - prints the page; leave --head, --token and --json out")
    seen = reading.run(run, device).attention(text, target)
    if out is not None:
        with output_to(out) as output:
            output.text(page(seen, f"Attention of {run}: {text}"))
    if as_json:
        echo_json(as_data(seen, token))
    elif head is not None:
        print_head(seen, head, Console())
    elif token is not None:
        print_token(seen, token, Console())
    elif out is None:
        print_heads(seen, Console())
    elif out != "-":
        echo(f"the page: {out}")
