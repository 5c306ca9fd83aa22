"""`tfkit ladder`: train several sizes of a recipe, fit a scaling law, and predict the largest before training it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfkit.cli.options import Finite, ReadOptions, Whole, reads_recipe
from tfkit.cli.terminal import OUTPUT, echo, outlasting
from tfkit.core.bounds import JOBS, SEEDS, SIZES

if TYPE_CHECKING:
    from tfkit.studies.climb import Climb


@click.command("ladder")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--sizes",
    type=Whole(SIZES),
    default=5,
    show_default=True,
    help="Number of sizes; the largest is RECIPE, held out of the fit.",
)
@click.option(
    "--budgets", type=Whole(SIZES), default=3, show_default=True, help="Number of token budgets, each half of the next."
)
@click.option("--seeds", type=Whole(SEEDS), default=2, show_default=True, help="Seeds per size.")
@click.option(
    "--span",
    type=Finite(1, min_open=True),
    default=64.0,
    show_default=True,
    help="Ratio of the largest to the smallest size.",
)
@click.option(
    "--compare",
    multiple=True,
    metavar="VARIANT",
    help="Variant to train at the same sizes; its advantage is reported in FLOPs; repeatable.",
)
@click.option(
    "--tune",
    multiple=True,
    metavar="KEY=VALUES",
    help="Values to try at each size on the first seed: train.schedule.lr=[0.001,0.002]; repeatable.",
)
@click.option(
    "--flops",
    type=Finite(0, min_open=True),
    help="Compute budget for which to report the optimal size.  [default: that of the largest run]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder.  [default: ladders/<name>]"
)
@click.option("--jobs", type=Whole(JOBS), default=1, show_default=True, help="Runs to train in parallel.")
@click.option("--dry-run", is_flag=True, help="Print the plan after two short trials, without training.")
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
    **options: Any,
) -> None:
    """Fit L = E + A / N^a + B / D^b to the losses of smaller sizes of RECIPE, predict RECIPE's loss, and train it.

    N is the number of parameters in the layers, D the number of tokens read. A smaller size has fewer heads of the same
    width, with d_model and d_ff in proportion, and fewer layers. Each smaller size is trained on all of the recipe's
    tokens, on half and on a quarter of them, each time with a full learning rate schedule. The prediction and its 95 %
    interval are written to prediction.json before the largest size is trained, as is the advantage of each --compare
    VARIANT: a factor of compute, fitted to runs of the variant at the same sizes.

    Repeating the command continues an interrupted ladder without repeating finished runs. If standard output is lost,
    training continues, and further output goes to output.log.
    """
    from tfkit.core.console import Console
    from tfkit.storage.files import written_to
    from tfkit.studies.arms import StudySource
    from tfkit.studies.climb import Climb
    from tfkit.studies.ladder import LadderOptions, make_ladder
    from tfkit.studies.page import check_packages
    from tfkit.studies.plan_file import keep_plan
    from tfkit.studies.watching import announce

    source = StudySource(recipe, reading.sets, reading.imports, reading.trust)
    loaded = source.recipe(reading.variants)
    loaded.tell_warnings()
    folder = out or Path("ladders") / loaded.name
    check_packages()
    with written_to(folder):
        plan = make_ladder(source, LadderOptions(**options, variants=reading.variants), folder)
        if not dry_run:
            plan = keep_plan(folder, plan)
        with contextlib.nullcontext() if dry_run else outlasting(folder / OUTPUT):
            announce(plan, jobs, Console())
            if not dry_run:
                ctx.exit(_run(Climb(source, plan, folder, jobs, flops, echo)))


def _run(climb: Climb) -> int:
    """Train the remaining runs and predict; return the exit status."""
    from tfkit.cli.main import INTERRUPTED, NO

    outcome = climb.run()
    if outcome == "stopped":
        echo("stopped; to continue, repeat the command")
    return {"stopped": INTERRUPTED, "failed": NO, "done": 0}[outcome]
