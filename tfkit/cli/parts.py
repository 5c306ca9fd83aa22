"""`tfkit parts` and `prove`."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from tfkit.cli.completion import RUN
from tfkit.cli.main import NO, WRONG, complain
from tfkit.cli.options import IMPORTS, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_data, echo_json, working
from tfkit.core.errors import UsageError
from tfkit.core.output import SPEECH
from tfkit.core.registry import CATALOGUES, REGISTRY, UnknownPart
from tfkit.core.synonyms import nearest, part_for

if TYPE_CHECKING:
    from tfkit.contracts.proving import Promise
    from tfkit.core.component import Component
    from tfkit.core.figures import Console
    from tfkit.run import Run
    from tfkit.training.setup import Task


@click.command("parts")
@click.argument("slot", required=False)
@click.argument("name", required=False)
@click.option("--matrix", is_flag=True, help="Print which parts can be combined, and why others cannot.")
@click.option("--declarations", is_flag=True, help="Print what classes may declare, of all slots or of SLOT.")
@click.option("--check", is_flag=True, help="Run the contract checks on the parts of SLOT, or only on NAME.")
@click.option(
    "--verify",
    multiple=True,
    metavar="FILE_OR_MODULE",
    help="Import custom parts and run the contract checks on them, filtered by SLOT and NAME; repeatable.",
)
@click.option("--in", "within", metavar="RECIPE", help="With --verify: check the parts in a small version of RECIPE.")
@IMPORTS
@click.pass_context
def parts_command(
    ctx: click.Context,
    slot: str | None,
    name: str | None,
    matrix: bool,
    declarations: bool,
    check: bool,
    verify: tuple[str, ...],
    within: str | None,
    imports: tuple[str, ...],
) -> None:
    """List the registered parts of all slots or of one SLOT, or describe the part NAME.

    The contract checks test the promises of a part in small models: that it is causal, that decoding from a cache
    equals a single pass, that it ignores padding, and so on. Exit status 1: a promise is broken.
    """
    options = {"--matrix": matrix, "--declarations": declarations, "--check": check, "--verify": bool(verify)}
    _check_options([option for option, is_given in options.items() if is_given], slot, name, within)
    modules, imported = _import(verify)
    imported = _import(imports)[1] and imported
    passed = True
    if verify or check:
        parts = _registered_parts(modules, slot, name) if verify else _parts(slot, name)
        passed = _run_checks(parts, within, (*verify, *imports))
    elif matrix:
        from tfkit.reports.parts_table import all_data, render_matrices

        tables = all_data()
        echo_data(tables, partial(render_matrices, tables))
    elif declarations:
        _print_declarations(slot and _slot(slot))
    else:
        _print_parts(slot, name)
    if not imported or REGISTRY.problems:  # broken plugins were reported when loaded
        ctx.exit(WRONG)
    ctx.exit(0 if passed else NO)


def _check_options(used: Sequence[str], slot: str | None, name: str | None, within: str | None) -> None:
    """Raise click.UsageError for options that exclude each other, or lack another one."""
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} cannot be combined; use one of them")
    if within is not None and "--verify" not in used:
        raise click.UsageError("--in is the recipe in which parts are verified; add --verify FILE_OR_MODULE")
    if "--matrix" in used and slot:
        raise click.UsageError("--matrix prints the tables of all slots; remove SLOT")
    if "--declarations" in used and name:
        raise click.UsageError(f"--declarations applies to a whole slot; remove {name}")
    if "--check" in used and not slot:
        raise click.UsageError("--check requires a SLOT, as in: tfkit parts attention --check")


def _import(names: Sequence[str]) -> tuple[list[ModuleType], bool]:
    """Return the imported modules, and True if all succeeded; print failures on standard error."""
    from tfkit.recipe.imports import import_parts

    modules = []
    for name in names:
        try:
            modules.append(import_parts(name))
        except UsageError as error:
            if SPEECH.data:
                raise
            complain(error)
    return modules, len(modules) == len(names)


def _parts(slot: str | None, name: str | None) -> list[type[Component]]:
    """Return the parts selected by SLOT and NAME. Raise UsageError, with a suggestion, for unknown ones."""
    slots = [_slot(slot)] if slot else list(CATALOGUES)
    if slot and name:
        return [_part(slot, name)]
    return [part for one in slots for _, part in sorted(REGISTRY.load(one).items())]


def _slot(slot: str) -> str:
    if slot in CATALOGUES:
        return slot
    homes = [home for home in CATALOGUES if slot in REGISTRY.load(home)]
    hint = nearest(slot, list(CATALOGUES))
    meant = next(((home, part) for home in CATALOGUES if (part := part_for(home, slot))), None)
    if homes:
        more = f"It is a part: tfkit parts {homes[0]} {slot}"
    elif meant is not None:
        more = f"It may be {meant[0]} '{meant[1]}': tfkit parts {meant[0]}"
    else:
        more = f"Did you mean '{hint}'?" if hint else f"Available: {', '.join(CATALOGUES)}."
    raise UsageError(f"unknown slot '{slot}'. {more}")


def _part(slot: str, name: str) -> type[Component]:
    try:
        return REGISTRY.get(slot, name)
    except UnknownPart as error:
        known = f"Available: {', '.join(error.known)}" if error.known else "No part is registered"
        more = f"Did you mean '{error.suggestion}'?" if error.suggestion else f"{known}."
        raise UsageError(f"{error}. {more}") from None


def _registered_parts(modules: Sequence[ModuleType], slot: str | None, name: str | None) -> list[type[Component]]:
    """Return the parts registered by the modules, filtered by SLOT and NAME."""
    from tfkit.contracts.verify import registered_by

    selected = _parts(slot, name)
    if not modules:
        return []
    own = registered_by(modules)
    chosen = [part for part in own if part in selected]
    if not chosen:
        available = ", ".join(f"{part.part_slot} '{part.part_name}'" for part in own)
        asked = " ".join(filter(None, (slot, name)))
        raise UsageError(f"the modules of --verify register no {asked}, only {available}")
    return chosen


def _run_checks(parts: Sequence[type[Component]], name: str | None, imports: tuple[str, ...]) -> bool:
    """Run the contract checks and print the results; with a recipe `name`, on the parts that it uses.

    Return True if all pass.
    """
    from tfkit.contracts.cases import MODEL
    from tfkit.contracts.verify import run_verification
    from tfkit.contracts.within import Home
    from tfkit.core.figures import Console

    console = None if SPEECH.data else Console()
    home = None if name is None else Home(ReadOptions(imports=imports).recipe(name))
    used = [part for part in parts if home is None or part.part_slot not in MODEL or home.case(part) is not None]
    unused = ", ".join(f"{part.part_slot} '{part.part_name}'" for part in parts if part not in used)
    if not used and unused:
        raise UsageError(f"{name} does not use {unused}; use a recipe that does")
    reports = run_verification(used, console, home) if used else []
    if SPEECH.data:
        echo_json({"parts": [report.as_data() for report in reports], "unused": unused.split(", ") if unused else []})
    elif unused:
        echo(f"not verified, because {name} does not use it: {unused}")
    return all(report.holds for report in reports)


def _print_parts(slot: str | None, name: str | None) -> None:
    from tfkit.core.figures import Console
    from tfkit.reports.parts import part_data, slot_data
    from tfkit.reports.parts_table import render_part, render_slot, render_slots

    if slot and name:
        part = _part(_slot(slot), name)
        data = part_data(part) if SPEECH.data else part_data(part, Console().width)
        echo_data(data, partial(render_part, data))
    elif slot:
        data = slot_data(_slot(slot))
        echo_data(data, partial(render_slot, data))
    else:
        slots = [slot_data(each) for each in CATALOGUES]
        echo_data(slots, partial(render_slots, slots))


def _print_declarations(slot: str | None) -> None:
    from tfkit.core.figures import Console
    from tfkit.reports.declarations import HEADS, tables
    from tfkit.reports.parts_table import rows, say

    found, console = tables(slot), Console()
    if SPEECH.data:
        keys = {name: [head.replace(" ", "_") for head in heads] for name, heads in HEADS.items()}
        return echo_json({name: [dict(zip(keys[name], row, strict=True)) for row in of] for name, of in found.items()})
    for name, of in found.items():
        say(console, name, "bold")
        rows(console, of, HEADS[name])
        console.print()


EXAMPLES = 64  # number of training examples


@click.command("prove")
@click.argument("run", type=RUN)
@click.pass_context
@reads_run
def prove_command(context: click.Context, run: str, reading: ReadOptions) -> None:
    """Measure how well RUN (a run folder) keeps its promises, and print each difference next to its bound.

    The measurements use the first 64 training examples, and four training steps in a temporary folder; RUN is not
    modified. Exit status 1: a promise is broken.
    """
    with working("proving"):
        promises = list(_promises(reading.run(run, "cpu")))
    broken = [promise.name for promise in promises if not promise.holds]
    data = {"run": run, "holds": not broken, "promises": [promise.as_data() for promise in promises]}
    echo_data(data, partial(_print, promises, broken))
    if broken:
        context.exit(NO)


def _promises(run: Run) -> Iterator[Promise]:
    """Measure all promises. Raise RunError or DataError if the data of the run cannot be read."""
    from tfkit.contracts.proving import NotApplicable, promises, proved
    from tfkit.interop.huggingface.verifying import TOLERANCE

    def task() -> Task:
        if run.recipe.data is None or run.recipe.objective is None:
            raise NotApplicable("the run has no data")
        return run.task(EXAMPLES)

    yield from promises(run.model, task)
    yield proved("exported = own", TOLERANCE, lambda: _exported(run))


def _exported(run: Run) -> float:
    """Export the run and return the largest relative difference from transformers."""
    from tfkit.contracts.proving import NotApplicable
    from tfkit.interop.huggingface.exporting import export_model
    from tfkit.interop.huggingface.verifying import verify

    if importlib.util.find_spec("transformers") is None:
        raise NotApplicable("transformers is not installed")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exported"
        export_model(run, target)
        verdict = verify(run, str(target), trust=True)  # the code in the folder is tfkit's own
    return max(one.relative for one in verdict.differences)


def _print(promises: list[Promise], broken: list[str], console: Console) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("promise", no_wrap=True)
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for promise in promises:
        value = "-" if promise.value is None else f"{promise.value:.1e}" if promise.value else "0"
        verdict = "holds" if promise.applies and promise.holds else "broken" if promise.applies else "does not apply"
        words = f"{verdict}: {promise.reason}" if promise.reason else verdict
        table.add_row(promise.name, value, f"{promise.bound:g}", words)
    console.print(table)
    echo(f"broken: {', '.join(broken)}" if broken else "all applicable promises hold")
