"""`tfkit study` and `compare`."""

from __future__ import annotations

import contextlib
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.main import INTERRUPTED, NO
from tfkit.cli.options import EXACT_JSON, IMPORTS, PATH, SETS, TRUST, Whole
from tfkit.cli.terminal import OUTPUT, echo, echo_data, echo_json, outlasting, warn
from tfkit.core.bounds import JOBS, SEEDS
from tfkit.core.errors import UsageError
from tfkit.core.output import printable
from tfkit.storage.files import written_to

if TYPE_CHECKING:
    from tfkit.studies.arms import StudySource
    from tfkit.studies.plan import Plan


@click.command("study")
@click.argument("study", metavar="STUDY")
@click.option("--out", type=PATH, metavar="FOLDER", help="Output folder.  [default: studies/<name>]")
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Runs to train in parallel.")
@click.option("--dry-run", is_flag=True, help="Print the plan after a short trial, without training.")
@click.option("--commands", "as_commands", is_flag=True, help="Print a command line for each remaining run.")
@click.option("--reproduce", is_flag=True, help="Train what the findings next to STUDY need again, with fresh seeds.")
@click.option("--claims", metavar="1,3", help="Numbers of the claims to reproduce.  [default: all]")
@click.option("--runs", type=Whole(SEEDS, 2), help="Runs of each variant to reproduce.  [default: as in the study]")
@click.option("--recheck", type=Whole(SEEDS), help="Evaluate N finished runs again from their weights; train none.")
@EXACT_JSON
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
    reproduce: bool,
    claims: str | None,
    runs: int | None,
    recheck: int | None,
    as_json: bool,
    sets: tuple[str, ...],
    imports: tuple[str, ...],
    trust: bool,
) -> None:
    """Train every variant of STUDY (a recipe with `study:`) with several seeds, and write a report.

    Repeating the command continues an interrupted study. Several processes, on several machines, may share one folder.
    If standard output is lost, training continues, and further output goes to output.log. With --json only the results
    are printed, as in results.json. Exit status 1: runs failed or were altered, a claim did not hold, or a finding or
    score is another than on record.
    """
    if as_commands + dry_run + as_json > 1:
        raise click.UsageError("--commands, --dry-run and --json cannot be combined; use one of them")
    if (claims is not None or runs) and not reproduce:
        raise click.UsageError("--claims and --runs have no effect without --reproduce; add it")
    if recheck and (jobs > 1 or dry_run or as_commands or reproduce or as_json or sets):
        raise click.UsageError("--recheck cannot be combined with options other than --out, --import and --trust")
    from tfkit.studies.again import Again
    from tfkit.studies.arms import StudySource
    from tfkit.studies.report import check_packages

    source = StudySource(study, sets, imports, trust)
    if recheck:
        ctx.exit(_rechecked(source, out, recheck))
    recipe = source.recipe()
    recipe.tell_warnings()
    source = Again.of(source, recipe, claims, runs) if reproduce else source
    if not as_commands:
        check_packages()
    folder = out or Path("studies") / f"{recipe.name}{'-reproduced' * reproduce}"
    ctx.exit(_studied(source, folder, jobs, dry_run, as_commands, as_json))


def _rechecked(source: StudySource, out: Path | None, number: int) -> int:
    """Print the new scores of some runs in a study's folder; return the exit status."""
    from tfkit.studies.again import rechecked
    from tfkit.studies.plan import PLAN

    own = Path(source.file)
    folder = out or (own if (own / PLAN).is_file() else Path("studies") / source.recipe().name)
    found = list(rechecked(source, folder, number))
    echo("\n".join(text for text, _ in found))
    equal = sum(is_equal for _, is_equal in found)
    echo(f"{equal:,} of {len(found):,} runs have the scores on record")
    return 0 if equal == len(found) else NO


def _planned(source: StudySource, folder: Path, timed: bool, kept: bool) -> Plan:
    """Build the plan of a study, showing the progress on a terminal; write it to the folder if `kept`."""
    from rich.text import Text

    from tfkit.core.figures import Console
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.planning import make_plan

    console = Console()
    with console.status("planning") if console.is_terminal else contextlib.nullcontext() as status:

        def show(text: str) -> None:
            if status is not None:
                status.update(Text(f"planning: {printable(text)}"))

        plan = make_plan(source, folder, timed=timed, report=show)
    return keep_plan(folder, plan) if kept else plan


def _studied(source: StudySource, folder: Path, jobs: int, dry_run: bool, as_commands: bool, as_json: bool) -> int:
    """Train the remaining runs, write the report and print it; return the exit status."""
    from tfkit.core.figures import Console
    from tfkit.studies.compare import print_results
    from tfkit.studies.findings import FINDINGS
    from tfkit.studies.runner import announce, commands
    from tfkit.studies.study import train_study

    with written_to(folder):
        plan = _planned(source, folder, timed=not as_commands, kept=not dry_run)
        if as_commands:
            for words in commands(source, plan, folder):
                echo(shlex.join(["tfkit", *words]))
            return 0
        with contextlib.nullcontext() if dry_run else outlasting(folder / OUTPUT):
            if not as_json:
                announce(plan, jobs, Console())
            if dry_run:
                return 0
            report = train_study(source, plan, folder, jobs, None if as_json else Console())
            if report is None:
                (warn if as_json else echo)("stopped; to continue, repeat the command")
                return INTERRUPTED
            if as_json:
                echo_json(report.as_data())
            else:
                print_results(report, Console())
                echo(f"the page: {folder / report.HTML}" if report.plan else f"the findings: {folder / FINDINGS}")
            return NO if report.results.failed or report.results.is_refuted else 0


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option("--measure", "measures", multiple=True, metavar="NAME", help="Metric to compare; repeatable.")
@click.option("--out", type=PATH, metavar="FOLDER", help="Write the HTML page and the tables to FOLDER.")
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
    """Compare each RUN with the first one, the runs in the folder of a study, or several results.csv as one study.

    Runs whose recipes differ only in the seed count as one variant. Exit status 1: runs were altered, or a claim did
    not hold.
    """
    from tfkit.studies.again import joined_report
    from tfkit.studies.compare import print_results, runs_report, study_report
    from tfkit.studies.plan import PLAN
    from tfkit.studies.plan_file import read_plan
    from tfkit.studies.report import check_packages

    if any(run.is_file() or run.suffix == ".csv" for run in runs):
        report = joined_report(runs, measures)
    elif len(runs) == 1:
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
    echo_data(report.as_data(), as_json, partial(print_results, report))
    if out is not None and not as_json:
        echo(f"the page: {out / report.HTML}")
    context.exit(NO if report.results.is_refuted else 0)
