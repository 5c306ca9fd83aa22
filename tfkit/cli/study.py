"""`tfkit study`: train the variants of a recipe and compare them."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import IMPORTS, SETS, TRUST, Whole
from tfkit.cli.terminal import OUTPUT, echo, outlasting
from tfkit.core.bounds import JOBS

if TYPE_CHECKING:
    from tfkit.studies.arms import StudySource
    from tfkit.studies.plan import Plan
    from tfkit.studies.runner import Runner


@click.command("study")
@click.argument("study", metavar="STUDY")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder.  [default: studies/<name>]"
)
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Runs to train in parallel.")
@click.option("--dry-run", is_flag=True, help="Print the plan after a short trial, without training.")
@click.option("--commands", "as_commands", is_flag=True, help="Print a command line for each remaining run.")
@SETS
@IMPORTS
@TRUST
@click.pass_context
def command(
    ctx: click.Context,
    study: str,
    out: Path | None,
    jobs: int,
    dry_run: bool,
    as_commands: bool,
    sets: tuple[str, ...],
    imports: tuple[str, ...],
    trust: bool,
) -> None:
    """Train every variant of STUDY (a recipe with `study:`) with several seeds, and write a report.

    Repeating the command continues an interrupted study. Several processes, on several machines, may share one folder.
    If standard output is lost, training continues, and further output goes to output.log.
    """
    if as_commands and dry_run:
        raise click.UsageError("--commands and --dry-run cannot be combined; use one of them")
    from tfkit.core.console import Console
    from tfkit.storage.files import written_to
    from tfkit.studies.arms import StudySource
    from tfkit.studies.page import check_packages
    from tfkit.studies.runner import Runner
    from tfkit.studies.watching import announce

    source = StudySource(study, sets, imports, trust)
    recipe = source.recipe()
    recipe.tell_warnings()
    folder = out or Path("studies") / recipe.name
    if not as_commands:
        check_packages()
    with written_to(folder):
        plan = _planned(source, folder, timed=not as_commands, kept=not dry_run)
        if as_commands:
            _print_commands(source, plan, folder)
            return
        with contextlib.nullcontext() if dry_run else outlasting(folder / OUTPUT):
            announce(plan, jobs, Console())
            if not dry_run:
                ctx.exit(_trained(Runner(source, plan, folder, jobs)))


def _planned(source: StudySource, folder: Path, timed: bool, kept: bool) -> Plan:
    """Build the plan of a study; write it to the folder if `kept`."""
    from tfkit.core.console import Console
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.planning import make_plan
    from tfkit.studies.watching import Planning

    with Planning(Console()) as planning:
        plan = make_plan(source, folder, timed=timed, report=planning.show)
    return keep_plan(folder, plan) if kept else plan


def _print_commands(source: StudySource, plan: Plan, folder: Path) -> None:
    """Print a command line for each remaining run."""
    from tfkit.studies.runner import commands

    for words in commands(source, plan, folder):
        echo(shlex.join(["tfkit", *words]))


def _trained(runner: Runner) -> int:
    """Train the remaining runs and write the report; return the exit status."""
    from tfkit.cli.main import INTERRUPTED, NO
    from tfkit.core.console import Console
    from tfkit.studies.compare import print_results, study_report
    from tfkit.studies.watching import Watcher

    with Watcher(Console()) as watcher:
        finished = runner.run(watcher.show)
    if not finished:
        echo("stopped; to continue, repeat the command")
        return INTERRUPTED
    failed = {run.name: why for run, why in runner.progress.failed.items()}
    report = study_report(runner.board.plan, runner.folder, failed)
    report.write(runner.folder)
    print_results(report, Console())
    echo(f"the page: {runner.folder / report.HTML}")
    return NO if failed or report.results.altered else 0
