"""`tfkit train`, `plan`, `evaluate` and `runs`."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tfkit.cli.completion import RECIPE, RUN
from tfkit.cli.main import WRONG
from tfkit.cli.options import ACCEPT, DEVICE, ReadOptions, Whole, reads_recipe, sets_run, vocabulary_note
from tfkit.cli.terminal import echo, echo_data, echo_json, say, working
from tfkit.core.bounds import COUNT
from tfkit.core.errors import RecipeError, TfkitError, UsageError
from tfkit.core.output import SPEECH, counted

if TYPE_CHECKING:
    from tfkit.training.planning import TrainingPlan


@click.command("train")
@click.argument("recipe", type=RECIPE)
@click.option(
    "--out",
    metavar="RUN",
    help="Run folder.  [default: runs/<recipe, variants and changed values>, with the next free number]",
)
@click.option("--resume", is_flag=True, help="Continue the run, or start it if missing.")
@click.option("--force", is_flag=True, help="Rename an existing run to NAME.old.")
@click.option("--device", metavar="NAME", help="Short for --set train.device=NAME: cpu, cuda, cuda:1 or auto.")
@ACCEPT
@reads_recipe
def train_command(
    recipe: str, out: str | None, resume: bool, force: bool, device: str | None, reading: ReadOptions
) -> None:
    """Train the model of RECIPE (a shipped name or a path).

    With --json, print the row of the run as `tfkit runs --json` does.
    """
    if device is not None:
        reading = replace(reading, sets=(*reading.sets, f"train.device={device}"))
    if resume and force:
        raise click.UsageError("--resume continues a run and --force replaces it; use one of them")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun, torch warns that all parameters are used
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        loaded = reading.recipe(recipe)
    except TfkitError as error:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(WRONG) from None  # reported by the first process
        raise _with_a_task(error, recipe) if isinstance(error, RecipeError) else error from None
    from tfkit.run import train

    run = train(loaded, out=out, resume=resume, force=force, accept_changes=reading.accept_changes)
    if SPEECH.data and os.environ.get("RANK", "0") == "0":
        from tfkit.studies.run_list import as_data, columns_of, runs_in

        rows = runs_in([run.folder])
        echo_json(as_data(rows, columns_of(rows))[0])


def _with_a_task(error: RecipeError, recipe: str) -> RecipeError:
    """Suggest the nearest trainable recipe if the recipe does not exist. Return other errors unchanged."""
    from tfkit.recipe.compose import named_like, shipped_tasks

    task = named_like(recipe, shipped_tasks())
    if task is None or os.path.exists(recipe) or any(fault.file != recipe for fault in error.faults):
        return error
    return RecipeError(replace(fault, suggestion=task) for fault in error.faults)


UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})")


def size(text: str) -> int:
    """Parse a size with a unit, such as 80GB, to bytes. Raise BadParameter for other texts."""
    match = SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise click.BadParameter(f"expected a size such as 80GB, 24GiB or 500MB, got {text[:40]!r}")
    return int(float(match[1]) * UNITS[match[2]])


@click.command("plan")
@click.argument("recipe", type=RECIPE)
@click.option("--devices", type=Whole(COUNT), default=1, show_default=True, help="Number of devices.")
@click.option("--memory", type=size, metavar="SIZE", required=True, help="Memory of each device, such as 80GB.")
@click.option("--length", type=Whole(COUNT), help="Tokens per row.  [default: the recipe's longest row]")
@reads_recipe
def plan_command(recipe: str, devices: int, memory: int, length: int | None, reading: ReadOptions) -> None:
    """Show the memory that training RECIPE (a name or a path) takes on each device, and the largest batch that fits.

    Nothing is allocated or read: a training step runs on tensors without values. With several devices, the memory with
    train.parallel.shard is shown, too. The total leaves out temporary tensors of kernels, which usually add a few
    percent.
    """
    say(f"{recipe}: tracing training steps")  # before the imports, which take seconds
    with working("tracing training steps"):
        from tfkit.training.planning import plan_training

        loaded = reading.recipe(recipe)
        loaded.tell_warnings()
        plan = plan_training(loaded, devices, memory, length, shlex.join([recipe, *reading.words]))
    echo_data(plan.as_data(), lambda _: _print(plan, vocabulary_note(loaded)))


def _print(plan: TrainingPlan, note: str | None) -> None:
    from tfkit.training.planning import MOST_LOGITS

    settings = plan.recipe.train
    echo(f"{plan.recipe.name}: {counted(plan.parameters, 'parameter')}, rows of {counted(plan.length, 'token')}")
    where = f"{counted(plan.devices, 'device')} of {_size(plan.room)}"
    echo(f"{settings.optimizer.part.part_name}, {settings.precision}, {where}")
    fixed = {one.shard: one.memory for one in plan.layouts}
    for shard, memory in fixed.items():
        echo(f"{'train.parallel.shard' if shard else 'whole weights'}, on each device")
        counts = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
        for name, count in counts.items():
            echo(f"  {name:<10}{_size(count):>12}")
    if plan.layouts[0].logits:
        echo(f"logits of the loss: {_size(plan.layouts[0].logits)} for each token, up to {MOST_LOGITS:,} at once")
    for one in plan.layouts:
        echo(f"train.recompute: {one.recompute}{', train.parallel.shard: true' if one.shard else ''}")
        echo(f"{'  first row':<12}{_size(one.memory.activations):>12}   {_size(one.row)} for each further row")
        tokens = f"{counted(one.rows, 'row')} over all devices, {one.rows * plan.length:,} tokens"
        lacking = f"{_size(one.needed(1) - plan.room)} too much for one row"
        echo(f"{'  largest':<12}{'' if one.rows else 'none':>12}   {tokens if one.rows else lacking}")
    if note is not None:
        echo(f"note: {note}")
    if plan.chosen is None:
        more = (
            "use several --devices and train.parallel.shard, which divides the weights among them"
            if plan.devices == 1
            else "add devices"
        )
        echo(f"Not even one row fits: {more}, or use a smaller model.")
    elif plan.command:
        echo(plan.command)
    else:
        echo("The recipe describes a model without data; to train it, extend it with a recipe that has data.")


def _size(count: int) -> str:
    """Format bytes with a decimal unit."""
    unit = next((unit for unit in ("TB", "GB", "MB") if count >= UNITS[unit]), "kB")
    return f"{count / UNITS.get(unit, 1000):,.1f} {unit}"


@click.command("evaluate")
@click.argument("run", type=RUN)
@click.option("--split", help="Split to evaluate: test, valid or train.  [default: test, else valid]")
@click.option("--limit", type=Whole(COUNT), help="Evaluate only the first N examples.", metavar="N")
@click.option("--quantize", type=click.Choice(["int8", "bfloat16"]), help="Quantize the weights before evaluating.")
@DEVICE
@sets_run
def evaluate_command(
    run: str,
    split: str | None,
    limit: int | None,
    quantize: Literal["int8", "bfloat16"] | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Print the metrics of RUN (a run folder), one per line, and save them in its evaluation.json.

    With --set or --quantize, the metrics are only printed.
    """
    with working("evaluating"):
        loaded = reading.run(run, device, quantize)
        scores = loaded.evaluate(split, limit, quantize)
        split = split or loaded.final_split
    lines = [f"{name}: {value:.6g}" for name, value in scores.items()]
    echo_data({"run": run, "split": split, "scores": scores}, lambda _: echo("\n".join(lines)))


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
    "--produced", metavar="MEASURE=NUMBER", help="Show the runs and study variants whose MEASURE rounds to NUMBER."
)
@click.option("--sort", metavar="KEY", help="Sort by a column or a key of the recipe.  [default: by name]")
@click.option("--reverse", is_flag=True, help="Sort in descending order.")
@click.option("--columns", metavar="KEY,KEY", help="Columns or recipe keys to show instead of the defaults.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all columns as CSV, with unrounded numbers.")
def runs_command(
    folders: tuple[Path, ...],
    conditions: tuple[str, ...],
    produced: str | None,
    sort: str | None,
    reverse: bool,
    columns: str | None,
    as_csv: bool,
) -> None:
    """List the runs in FOLDERS (default: runs) with their progress and scores.

    A KEY is a column (valid.loss, seconds, test.bleu) or a recipe key, optionally shortened to its last components
    (norm, layer.norm.eps).
    """
    if as_csv and SPEECH.data:
        raise click.UsageError("--csv and --json cannot be combined; use one of them")
    from tfkit.core.figures import Console
    from tfkit.reports.formats import csv_text
    from tfkit.runs.claim import RUNS
    from tfkit.studies.compare import PrintedNumber, means, producers
    from tfkit.studies.run_list import COLUMNS, as_data, check_key, columns_of, render, runs_in, selected

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
    elif SPEECH.data:
        echo_json(as_data(selection, chosen or columns_of(runs)))
    else:
        more = [] if number is None or number.measure in COLUMNS else [number.measure]
        render(selection, chosen or [*COLUMNS, *more], Console())
        for line in means(runs, number) if number is not None else ():
            echo(line)
