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
@click.option("--to", "form", type=click.Choice(["int8"]), default="int8", show_default=True, help="Stored dtype.")
@click.option("--split", help="Split to evaluate: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(COUNT), help="Evaluate only the first N examples.", metavar="N")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
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
    """Write RUN (a run folder) to OUT with int8 weights, and print its size and metrics before and after.

    Matrices of linear layers and embedding tables are stored as int8 with a scale per row; other weights are unchanged.
    OUT can be used like any run but not trained. On a CPU it generates text in int8; all other computations use the
    quantized weights in float32.
    """
    from tfkit.interop.quantizing import quantize_run

    with working("quantizing"):
        quantized = quantize_run(reading.run(run, "cpu"), out, force, split, limit)
    if as_json:
        echo_json(quantized.as_data())
    else:
        _print(quantized, form)


def _print(quantized: QuantizedRun, form: str) -> None:
    before, after = quantized.bytes
    echo(f"{quantized.folder}: weights in {form}, {after:,} bytes instead of {before:,} ({after / before:.0%})")
    for name, (was, now) in quantized.scores.items():
        echo(f"{name}: {now:.6g}, before {was:.6g}")
    if not quantized.scores:
        echo("no metrics: the run has no data")
