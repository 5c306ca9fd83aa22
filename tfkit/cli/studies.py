"""`tfkit study` and `compare`."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.main import NO
from tfkit.cli.options import EXACT_JSON, IMPORTS, SETS, TRUST, Whole
from tfkit.cli.terminal import OUTPUT, echo, echo_json, outlasting
from tfkit.core.bounds import JOBS
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from tfkit.studies.arms import StudySource
    from tfkit.studies.plan import Plan


def _refuse_on(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError("--on was removed; --commands prints a line for each run, for any scheduler")


@click.command("study")
@click.argument("study", metavar="STUDY")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder.  [default: studies/<name>]"
)
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Runs to train in parallel.")
@click.option("--dry-run", is_flag=True, help="Print the plan after a short trial, without training.")
@click.option("--commands", "as_commands", is_flag=True, help="Print a command line for each remaining run.")
@click.option("--on", hidden=True, expose_value=False, callback=_refuse_on)
@SETS
@IMPORTS
@TRUST
@click.pass_context
def study_command(
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
    from tfkit.core.figures import Console
    from tfkit.storage.files import written_to
    from tfkit.studies.arms import StudySource
    from tfkit.studies.report import check_packages
    from tfkit.studies.runner import announce, commands

    source = StudySource(study, sets, imports, trust)
    recipe = source.recipe()
    recipe.tell_warnings()
    folder = out or Path("studies") / recipe.name
    if not as_commands:
        check_packages()
    with written_to(folder):
        plan = _planned(source, folder, timed=not as_commands, kept=not dry_run)
        if as_commands:
            for words in commands(source, plan, folder):
                echo(shlex.join(["tfkit", *words]))
            return
        with contextlib.nullcontext() if dry_run else outlasting(folder / OUTPUT):
            announce(plan, jobs, Console())
            if not dry_run:
                ctx.exit(_trained(source, plan, folder, jobs))


def _planned(source: StudySource, folder: Path, timed: bool, kept: bool) -> Plan:
    """Build the plan of a study, showing the progress on a terminal; write it to the folder if `kept`."""
    from rich.text import Text

    from tfkit.core.figures import Console
    from tfkit.core.output import printable
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.planning import make_plan

    console = Console()
    with console.status("planning") if console.is_terminal else contextlib.nullcontext() as status:

        def show(text: str) -> None:
            if status is not None:
                status.update(Text(f"planning: {printable(text)}"))

        plan = make_plan(source, folder, timed=timed, report=show)
    return keep_plan(folder, plan) if kept else plan


def _trained(source: StudySource, plan: Plan, folder: Path, jobs: int) -> int:
    """Train the remaining runs, write the report and print it; return the exit status."""
    from tfkit.cli.main import INTERRUPTED, NO
    from tfkit.core.figures import Console
    from tfkit.studies.compare import print_results
    from tfkit.studies.study import train_study

    report = train_study(source, plan, folder, jobs, Console())
    if report is None:
        echo("stopped; to continue, repeat the command")
        return INTERRUPTED
    print_results(report, Console())
    echo(f"the page: {folder / report.HTML}")
    return NO if report.results.failed or report.results.altered else 0


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--measure", "measures", multiple=True, metavar="NAME", help="Metric to compare; repeatable.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Write the HTML page and the tables to FOLDER."
)
@EXACT_JSON
@IMPORTS
@TRUST
@click.pass_context
def compare_command(
    context: click.Context,
    runs: tuple[Path, ...],
    measures: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    imports: tuple[str, ...],
    trust: bool,
) -> None:
    """Compare each RUN with the first one, or the runs in the folder of a study.

    Runs whose recipes differ only in the seed count as one variant. Exit status 1: runs were altered.
    """
    from tfkit.core.figures import Console
    from tfkit.storage.files import written_to
    from tfkit.studies.compare import print_results, runs_report, study_report
    from tfkit.studies.plan import PLAN
    from tfkit.studies.plan_file import read_plan
    from tfkit.studies.report import check_packages

    if len(runs) == 1:
        if not (runs[0] / PLAN).is_file():
            raise UsageError(f"{runs[0]}: is not the folder of a study; pass one, or several runs to compare")
        if measures:
            raise UsageError("--measure: the metrics of a study are set in its recipe; remove the option")
        report = study_report(read_plan(runs[0]), runs[0])
    else:
        report = runs_report(runs, measures, trust, imports)
    if out is not None:
        check_packages()
        with written_to(out):
            out.mkdir(parents=True, exist_ok=True)
            report.write(out)
    if as_json:
        echo_json(report.as_data())
    else:
        print_results(report, Console())
    if out is not None and not as_json:
        echo(f"the page: {out / report.HTML}")
    context.exit(NO if report.results.altered else 0)
