"""`tfkit study` and `compare`."""

from __future__ import annotations

import contextlib
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.completion import RECIPE
from tfkit.cli.main import INTERRUPTED, NO, complain
from tfkit.cli.options import IMPORTS, PATH, SETS, TRUST, Whole
from tfkit.cli.terminal import OUTPUT, echo, echo_data, outlasting
from tfkit.core.bounds import JOBS, SEEDS
from tfkit.core.errors import UsageError
from tfkit.core.output import SPEECH, printable
from tfkit.storage.files import written_to

if TYPE_CHECKING:
    from tfkit.studies.arms import StudySource
    from tfkit.studies.plan import Plan


@click.command("study")
@click.argument("study", type=RECIPE, metavar="STUDY")
@click.option("--out", type=PATH, metavar="FOLDER", help="Output folder.  [default: studies/<name>]")
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Runs to train in parallel.")
@click.option("--dry-run", is_flag=True, help="Print the plan after a short trial, without training.")
@click.option("--commands", "as_commands", is_flag=True, help="Print a command line for each remaining run.")
@click.option("--reproduce", is_flag=True, help="Reproduce the findings next to STUDY by training with fresh seeds.")
@click.option("--claims", metavar="1,3", help="Numbers of the claims to reproduce.  [default: all]")
@click.option("--runs", type=Whole(SEEDS, 2), help="Runs of each variant to reproduce.  [default: as in the study]")
@click.option("--recheck", type=Whole(SEEDS), help="Evaluate N finished runs again from their weights; train none.")
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
    if as_commands and dry_run:
        raise click.UsageError("--commands and --dry-run cannot be combined; use one of them")
    if (claims is not None or runs) and not reproduce:
        raise click.UsageError("--claims and --runs have no effect without --reproduce; add it")
    if recheck and (jobs > 1 or dry_run or as_commands or reproduce or sets):
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
    ctx.exit(_studied(source, folder, jobs, dry_run, as_commands))


def _rechecked(source: StudySource, out: Path | None, number: int) -> int:
    """Print the new scores of some runs in a study's folder; return the exit status."""
    from tfkit.studies.again import rechecked
    from tfkit.studies.plan import PLAN

    own = Path(source.file)
    folder = out or (own if (own / PLAN).is_file() else Path("studies") / source.recipe().name)
    found = list(rechecked(source, folder, number))
    equal = sum(is_equal for _, is_equal in found)
    lines = [*(text for text, _ in found), f"{equal:,} of {len(found):,} runs have the scores on record"]
    data = {"runs": [{"text": text, "equal": is_equal} for text, is_equal in found], "equal": equal}
    echo_data(data, lambda _: echo("\n".join(lines)))
    return 0 if equal == len(found) else NO


def _planned(source: StudySource, folder: Path, timed: bool, kept: bool) -> Plan:
    """Build the plan of a study, showing the progress on a terminal; write it to the folder if `kept`."""
    from rich.text import Text

    from tfkit.core.figures import Console
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.planning import make_plan

    console, silent = Console(stderr=True), SPEECH.json or SPEECH.quiet
    with console.status("planning") if console.is_terminal and not silent else contextlib.nullcontext() as status:

        def show(text: str) -> None:
            if status is not None:
                status.update(Text(f"planning: {printable(text)}"))

        plan = make_plan(source, folder, timed=timed, report=show)
    return keep_plan(folder, plan) if kept else plan


def _studied(source: StudySource, folder: Path, jobs: int, dry_run: bool, as_commands: bool) -> int:
    """Train the remaining runs, write the report and print it; return the exit status."""
    from tfkit.core.figures import Console
    from tfkit.studies.compare import print_results
    from tfkit.studies.findings import FINDINGS
    from tfkit.studies.runner import announce, commands
    from tfkit.studies.study import train_study

    with written_to(folder):
        plan = _planned(source, folder, timed=not as_commands, kept=not dry_run)
        if as_commands:
            lines = [shlex.join(["tfkit", *words]) for words in commands(source, plan, folder)]
            echo_data({"commands": lines}, lambda _: echo("".join(f"{line}\n" for line in lines), end=""))
            return 0
        if dry_run:
            heads, cells = plan.table()
            table = [dict(zip(heads, row, strict=True)) for row in cells]
            data = {"plan": table, "summary": plan.summary(jobs), "notes": list(plan.notes)}
            echo_data(data, partial(announce, plan, jobs))
            return 0
        with outlasting(folder / OUTPUT):
            console = None if SPEECH.quiet else Console(stderr=True)
            if console is not None:
                announce(plan, jobs, console)
            report = train_study(source, plan, folder, jobs, console)
            if report is None:
                complain(UsageError("stopped; to continue, repeat the command"))
                return INTERRUPTED
            echo_data(report.as_data(), partial(print_results, report))
            if not SPEECH.data:
                echo(f"the page: {folder / report.HTML}" if report.plan else f"the findings: {folder / FINDINGS}")
            return NO if report.results.failed or report.results.is_refuted else 0


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option("--measure", "measures", multiple=True, metavar="NAME", help="Metric to compare; repeatable.")
@click.option("--out", type=PATH, metavar="FOLDER", help="Write the HTML page and the tables to FOLDER.")
@IMPORTS
@TRUST
@click.pass_context
def compare_command(
    context: click.Context,
    runs: tuple[Path, ...],
    measures: tuple[str, ...],
    out: Path | None,
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
    echo_data(report.as_data(), partial(print_results, report))
    if out is not None and not SPEECH.data:
        echo(f"the page: {out / report.HTML}")
    context.exit(NO if report.results.is_refuted else 0)
