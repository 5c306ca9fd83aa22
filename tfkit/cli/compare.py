"""`tfkit compare`: tables, verdicts and a page from existing runs."""

from __future__ import annotations

from pathlib import Path

import click

from tfkit.cli.main import NO
from tfkit.cli.options import EXACT_JSON, IMPORTS, TRUST
from tfkit.cli.terminal import echo, echo_json


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
def command(
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
    from tfkit.core.console import Console
    from tfkit.core.errors import UsageError
    from tfkit.storage.files import written_to
    from tfkit.studies.compare import print_results, runs_report, study_report
    from tfkit.studies.page import check_packages
    from tfkit.studies.plan import PLAN
    from tfkit.studies.plan_file import read_plan

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
