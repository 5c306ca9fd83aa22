"""`tfkit quantize`: int8 weights for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tfkit.cli.options import EXACT_JSON, ReadOptions, Whole, reads_run
from tfkit.cli.terminal import echo, echo_json, working
from tfkit.core.bounds import COUNT

if TYPE_CHECKING:
    from tfkit.interop.quantizing import QuantizedRun


@click.command("quantize")
@click.argument("run")
@click.argument("out")
@click.option("--to", "form", type=click.Choice(["int8"]), default="int8", show_default=True, help="The stored type.")
@click.option("--split", help="The split to measure on: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(COUNT), help="Measure on the first N examples only.", metavar="N")
@click.option("--force", is_flag=True, help="Rename a run that is there to NAME.old, and write a new one.")
@EXACT_JSON
@reads_run
def command(
    run: str,
    out: str,
    form: str,
    split: str | None,
    limit: int | None,
    force: bool,
    as_json: bool,
    reading: ReadOptions,
) -> None:
    """Write RUN (a run's folder) to OUT with its weights in int8, and print its size and metrics before and after.

    Matrices of linear layers and embedding tables get a scale for each row; all others stay. OUT is used as any run
    but cannot be trained. On a CPU its texts are generated in int8; all else computes in float32 with its weights.
    """
    from tfkit.interop.quantizing import quantize_run

    with working("quantizing"):
        made = quantize_run(reading.run(run, "cpu"), out, force, split, limit)
    if as_json:
        echo_json(made.as_data())
    else:
        _print(made, form)


def _print(made: QuantizedRun, form: str) -> None:
    before, after = made.bytes
    echo(f"{made.folder}: weights in {form}, {after:,} bytes instead of {before:,} ({after / before:.0%})")
    for name, (was, now) in made.scores.items():
        echo(f"{name}: {now:.6g}, before {was:.6g}")
    if not made.scores:
        echo("no metrics: the run says no data")
