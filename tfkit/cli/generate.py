"""`tfkit generate`: what a run writes."""

from __future__ import annotations

import sys

import click

from tfkit.cli.options import Reading, Whole, sets_run
from tfkit.cli.texts import batches, lines

TOGETHER = 32  # lines of standard input that are read before they are answered


@click.command("generate")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--max-new-tokens", type=Whole(), help="Stop after so many tokens.  [default: the recipe's]", metavar="N")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ...")
@sets_run
def command(run: str, texts: tuple[str, ...], max_new_tokens: int | None, device: str, reading: Reading) -> None:
    """Let RUN (a run's folder) write: a continuation, or the other text of an encoder-decoder.

    Prints one output for each TEXT. Without TEXT, reads standard input line by line and prints one line for each; line
    breaks within an output then become spaces.
    """
    loaded = reading.run(run, device)
    if texts:
        for output in loaded.generate(list(texts), max_new_tokens=max_new_tokens):
            click.echo(output)
        return
    for prompts in batches(lines(sys.stdin.buffer), 1 if sys.stdin.isatty() else TOGETHER):
        for output in loaded.generate(prompts, max_new_tokens=max_new_tokens):
            click.echo(" ".join(output.splitlines()))
