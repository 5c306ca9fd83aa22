"""`tfkit evaluate`: metrics of a run."""

from __future__ import annotations

from typing import Literal

import click

from tfkit.cli.options import DEVICE, ReadOptions, Whole, sets_run
from tfkit.cli.terminal import echo, working
from tfkit.core.bounds import COUNT


@click.command("evaluate")
@click.argument("run")
@click.option("--split", help="Split to evaluate: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(COUNT), help="Evaluate only the first N examples.", metavar="N")
@click.option(
    "--quantize",
    type=click.Choice(["int8", "bfloat16"]),
    help="Quantize the weights before evaluating.",
)
@DEVICE
@sets_run
def command(
    run: str,
    split: str | None,
    limit: int | None,
    quantize: Literal["int8", "bfloat16"] | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Print the metrics of RUN (a run folder), one per line, and save them in its evaluation.json.

    With --set or --quantize, the metrics are only printed.
    """
    with working("evaluating"):
        scores = reading.run(run, device, quantize).evaluate(split, limit, quantize)
    for name, value in scores.items():
        echo(f"{name}: {value:.6g}")
