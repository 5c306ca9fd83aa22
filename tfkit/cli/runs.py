"""`tfkit runs`: a table of existing runs."""

from __future__ import annotations

from pathlib import Path

import click

from tfkit.cli.terminal import echo, echo_json


@click.command("runs")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Show only matching runs: norm=rms_norm; repeatable.",
)
@click.option(
    "--produced",
    metavar="MEASURE=NUMBER",
    help="Show the runs and study variants whose MEASURE rounds to NUMBER.",
)
@click.option("--sort", metavar="KEY", help="Sort by a column or a key of the recipe.  [default: by name]")
@click.option("--reverse", is_flag=True, help="Sort in descending order.")
@click.option("--columns", metavar="KEY,KEY", help="Columns or recipe keys to show instead of the defaults.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all columns as CSV, with unrounded numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print all columns as JSON, with unrounded numbers.")
def command(
    folders: tuple[Path, ...],
    conditions: tuple[str, ...],
    produced: str | None,
    sort: str | None,
    reverse: bool,
    columns: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """List the runs in FOLDERS (default: runs) with their progress and scores.

    A KEY is a column (valid.loss, seconds, test.bleu) or a recipe key, optionally shortened to its last components
    (norm, layer.norm.eps).
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be combined; use one of them")
    from tfkit.core.console import Console
    from tfkit.core.errors import UsageError
    from tfkit.reports.formats import csv_text
    from tfkit.studies.provenance import PrintedNumber, means, producers
    from tfkit.studies.run_list import COLUMNS, as_data, check_key, columns_of, render, runs_in, selected
    from tfkit.training.claim import RUNS

    runs = runs_in(folders or [RUNS])
    if not runs:
        raise UsageError(f"no runs in {', '.join(map(str, folders or [RUNS]))}")
    number = None if produced is None else PrintedNumber.of(produced)
    selection = selected(runs, conditions, sort, reverse)
    selection = selection if number is None else producers(selection, number)
    chosen = [name.strip() for name in (columns or "").split(",") if name.strip()]
    for name in chosen:
        check_key(runs, name, f"--columns {name}")
    if as_csv:
        names = chosen or columns_of(runs)
        echo(csv_text(names, (row.values() for row in as_data(selection, names))), end="")
    elif as_json:
        echo_json(as_data(selection, chosen or columns_of(runs)))
    else:
        more = [] if number is None or number.measure in COLUMNS else [number.measure]
        render(selection, chosen or [*COLUMNS, *more], Console())
        for line in means(runs, number) if number is not None else ():
            echo(line)
