"""`tfkit verify`: a run beside a model of Hugging Face's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tfkit.cli.options import EXACT_JSON, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from tfkit.interop.huggingface.verifying import Verdict

WRONG = 2


@click.command("verify")
@click.argument("run")
@click.option("--against", required=True, metavar="FOLDER_OR_NAME", help="Their model: a folder, or a name on the hub.")
@click.option("--text", help="The text that both read.  [default: random tokens]")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=1e-4, show_default=True, help="Largest relative difference."
)
@EXACT_JSON
@click.pass_context
@reads_run
def command(
    context: click.Context,
    run: str,
    against: str,
    text: str | None,
    tolerance: float,
    as_json: bool,
    reading: ReadOptions,
) -> None:
    """Compare RUN (a run's folder) with their model: hidden states layer by layer, and logits.

    Both compute in float32. Exit status 0: equal; 2: not. A model that brings its own code runs with --trust only.
    """
    from tfkit.interop.huggingface.verifying import verify

    verdict = verify(reading.run(run, "cpu"), against, text, tolerance, reading.trust)
    if as_json:
        echo_json(verdict.as_data())
    else:
        _print(verdict)
    if not verdict.equal:
        context.exit(WRONG)


def _print(verdict: Verdict) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from tfkit.core.console import Console

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("")
    for heading in ("largest difference", "relative"):
        table.add_column(heading, justify="right")
    for one in verdict.differences:
        table.add_row(one.place, f"{one.largest:.2e}", f"{one.relative:.2e}")
    Console().print(table)
    for note in verdict.notes:
        echo(note)
    echo(f"input: {verdict.input}")
    if verdict.predicted:
        echo(f"most likely token: the same at {verdict.agreeing:,} of {verdict.predicted:,} places")
    worst = max(verdict.differences, key=lambda one: one.relative)
    if verdict.equal:
        echo(f"equal: no relative difference above {verdict.tolerance:g}")
    else:
        off = f"{worst.place} is off by {worst.relative:.1e} of its largest number"
        echo(f"not equal: {off}, allowed {verdict.tolerance:g}")
