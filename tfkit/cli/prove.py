"""`tfkit prove`: test of a run's promises on its own weights and data."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.main import NO
from tfkit.cli.options import EXACT_JSON, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json, working

if TYPE_CHECKING:
    from tfkit.contracts.proving import Promise
    from tfkit.run import Run
    from tfkit.training.setup import Task

EXAMPLES = 64  # number of training examples


@click.command("prove")
@click.argument("run")
@EXACT_JSON
@click.pass_context
@reads_run
def command(context: click.Context, run: str, as_json: bool, reading: ReadOptions) -> None:
    """Measure how well RUN (a run folder) keeps its promises, and print each difference next to its bound.

    The measurements use the first 64 training examples, and four training steps in a temporary folder; RUN is not
    modified. Exit status 1: a promise is broken.
    """
    with working("proving"):
        promises = list(_promises(reading.run(run, "cpu")))
    broken = [promise.name for promise in promises if not promise.holds]
    if as_json:
        echo_json({"run": run, "holds": not broken, "promises": [promise.as_data() for promise in promises]})
    else:
        _print(promises)
        echo(f"broken: {', '.join(broken)}" if broken else "all applicable promises hold")
    if broken:
        context.exit(NO)


def _promises(run: Run) -> Iterator[Promise]:
    """Measure all promises. Raise RunError or DataError if the data of the run cannot be read."""
    from tfkit.contracts.proving import NotApplicable, promises, proved
    from tfkit.interop.huggingface.verifying import TOLERANCE

    def task() -> Task:
        if run.recipe.data is None or run.recipe.objective is None:
            raise NotApplicable("the run has no data")
        return run.task(EXAMPLES)

    yield from promises(run.model, task)
    yield proved("exported = own", TOLERANCE, lambda: _exported(run))


def _exported(run: Run) -> float:
    """Export the run and return the largest relative difference from transformers."""
    from tfkit.contracts.proving import NotApplicable
    from tfkit.interop.huggingface.exporting import export_model
    from tfkit.interop.huggingface.verifying import verify

    if importlib.util.find_spec("transformers") is None:
        raise NotApplicable("transformers is not installed")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exported"
        export_model(run, target)
        verdict = verify(run, str(target), trust=True)  # the code in the folder is tfkit's own
    return max(one.relative for one in verdict.differences)


def _print(promises: list[Promise]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from tfkit.core.console import Console

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("promise", no_wrap=True)
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for promise in promises:
        value = "-" if promise.value is None else f"{promise.value:.1e}" if promise.value else "0"
        verdict = "holds" if promise.applies and promise.holds else "broken" if promise.applies else "does not apply"
        words = f"{verdict}: {promise.reason}" if promise.reason else verdict
        table.add_row(promise.name, value, f"{promise.bound:g}", words)
    Console().print(table)
