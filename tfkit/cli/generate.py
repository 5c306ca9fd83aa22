"""`tfkit generate`: what a run writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import click

from tfkit.cli.options import Reading, Whole, reads_run
from tfkit.core.errors import DataError

TOGETHER = 32  # lines of standard input that are read before they are answered


@click.command("generate")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--max-new-tokens", type=Whole(), help="Stop after so many tokens.  [default: the recipe's]", metavar="N")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ...")
@reads_run
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
    for prompts in _batches(_lines(sys.stdin.buffer), 1 if sys.stdin.isatty() else TOGETHER):
        for output in loaded.generate(prompts, max_new_tokens=max_new_tokens):
            click.echo(" ".join(output.splitlines()))


def _lines(stream: BinaryIO) -> Iterator[str]:
    """The lines without their ends; raises DataError where one is not text."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"standard input, line {number}: is not UTF-8 text ({error.reason})") from None


def _batches(lines: Iterator[str], count: int) -> Iterator[list[str]]:
    while prompts := list(islice(lines, count)):
        yield prompts
