"""`tfkit plan`: memory of training on several devices."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import EXACT_JSON, ReadOptions, Whole, reads_recipe, vocabulary_note
from tfkit.cli.terminal import echo, echo_json, warn, working
from tfkit.core.bounds import COUNT

if TYPE_CHECKING:
    from tfkit.training.planning import TrainingPlan

UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})")


def size(text: str) -> int:
    """Parse a size with a unit, such as 80GB, to bytes. Raise BadParameter for other texts."""
    match = SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise click.BadParameter(f"expected a size such as 80GB, 24GiB or 500MB, got {text[:40]!r}")
    return int(float(match[1]) * UNITS[match[2]])


@click.command("plan")
@click.argument("recipe")
@click.option("--devices", type=Whole(COUNT), default=1, show_default=True, help="Number of devices.")
@click.option("--memory", type=size, metavar="SIZE", required=True, help="Memory of each device, such as 80GB.")
@click.option("--length", type=Whole(COUNT), help="Tokens per row.  [default: the recipe's longest row]")
@EXACT_JSON
@reads_recipe
def command(recipe: str, devices: int, memory: int, length: int | None, as_json: bool, reading: ReadOptions) -> None:
    """Show the memory that training RECIPE (a name or a path) takes on each device, and the largest batch that fits.

    Nothing is allocated or read: a training step runs on tensors without values. With several devices, the memory with
    train.parallel.shard is shown, too. The total leaves out temporary tensors of kernels, which usually add a few
    percent.
    """
    warn(f"{recipe}: tracing training steps")  # before the imports, which take seconds
    with working("tracing training steps"):
        from tfkit.training.planning import plan_training

        loaded = reading.recipe(recipe)
        loaded.tell_warnings()
        plan = plan_training(loaded, devices, memory, length, shlex.join([recipe, *reading.words]))
    if as_json:
        echo_json(plan.as_data())
    else:
        _print(plan, vocabulary_note(loaded))


def _print(plan: TrainingPlan, note: str | None) -> None:
    from tfkit.core.output import counted
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
