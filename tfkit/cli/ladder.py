"""`tfkit ladder`: train several sizes of a recipe, fit a scaling law, and predict the largest before training it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfkit.cli.options import ReadOptions, Whole, reads_recipe
from tfkit.cli.terminal import OUTPUT, echo, outlasting
from tfkit.core.bounds import JOBS, SEEDS, SIZES

if TYPE_CHECKING:
    from tfkit.studies.climb import Climb


@click.command("ladder")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--sizes", type=Whole(SIZES), default=5, show_default=True, help="Sizes; RECIPE is the largest, held out."
)
@click.option(
    "--budgets", type=Whole(SIZES), default=3, show_default=True, help="Token budgets, each half of the next."
)
@click.option("--seeds", type=Whole(SEEDS), default=2, show_default=True, help="Seeds that each size is trained with.")
@click.option(
    "--span", type=click.FloatRange(1, min_open=True), default=64.0, show_default=True, help="Largest size by smallest."
)
@click.option(
    "--flops",
    type=click.FloatRange(0, min_open=True),
    help="FLOPs to say the optimum of.  [default: the largest run's]",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Its folder.  [default: ladders/<name>]")
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Trainings at a time.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, and train nothing but two trials of some steps.")
@reads_recipe
@click.pass_context
def command(
    ctx: click.Context,
    /,
    recipe: str,
    flops: float | None,
    out: Path | None,
    jobs: int,
    dry_run: bool,
    reading: ReadOptions,
    **wanted: Any,
) -> None:
    """Fit L = E + A / N^a + B / D^b to the losses of smaller sizes of RECIPE, predict RECIPE's own, and train it.

    N are the parameters of the layers, D the tokens read. A smaller size has fewer heads of the same size, with d_model
    and d_ff in proportion, and fewer layers; it is trained on all of the recipe's tokens, on half, and on a quarter of
    them, each time with a learning rate schedule of its own. The prediction with its 95 % interval is written to
    prediction.json before the largest size is trained.

    The same line goes on where it stopped: what is done is not repeated. If nobody reads what it prints, it goes on,
    and the rest is in output.log.
    """
    from tfkit.core.console import Console
    from tfkit.storage.files import written_to
    from tfkit.studies.arms import StudySource
    from tfkit.studies.climb import Climb
    from tfkit.studies.ladder import Wanted, make_ladder
    from tfkit.studies.page import check_packages
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.watching import announce

    source = StudySource(recipe, reading.sets, reading.imports, reading.trust)
    loaded = source.recipe(reading.variants)
    loaded.tell_warnings()
    folder = out or Path("ladders") / loaded.name
    check_packages()
    with written_to(folder):
        plan = make_ladder(source, Wanted(**wanted, variants=reading.variants), folder)
        if not dry_run:
            plan = keep_plan(folder, plan)
        with contextlib.nullcontext() if dry_run else outlasting(folder / OUTPUT):
            announce(plan, jobs, Console())
            if not dry_run:
                ctx.exit(_climbed(Climb(source, plan, folder, jobs, flops, echo)))


def _climbed(climb: Climb) -> int:
    """Train the remaining runs and predict; return the exit status."""
    from tfkit.cli.main import INTERRUPTED, LOST

    outcome = climb.run()
    if outcome == "stopped":
        echo("stopped; to go on, type the same line again")
    return {"stopped": INTERRUPTED, "failed": LOST, "done": 0}[outcome]
