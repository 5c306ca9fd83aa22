"""`tfkit evaluate`: the metrics of a run."""

from __future__ import annotations

from typing import Literal

import click

from tfkit.cli.options import DEVICE, Reading, Whole, sets_run
from tfkit.cli.terminal import echo, working


@click.command("evaluate")
@click.argument("run")
@click.option("--split", help="The data to measure on: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(), help="Measure on the first N examples only.", metavar="N")
@click.option(
    "--quantize",
    type=click.Choice(["int8"]),
    help="Compute with weights in int8, to see what that costs.",
)
@DEVICE
@sets_run
def command(
    run: str, split: str | None, limit: int | None, quantize: Literal["int8"] | None, device: str, reading: Reading
) -> None:
    """Print the metrics of RUN (a run's folder), one a line, and write them to its evaluation.json.

    Another way to write (--set) or to compute (--quantize) is measured for its own sake: the file stays as it is.
    """
    with working("evaluating"):
        scores = reading.run(run, device, quantize).evaluate(split, limit, quantize)
    for name, value in scores.items():
        echo(f"{name}: {value:.6g}")
