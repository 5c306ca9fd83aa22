"""`tfkit parts`: list the registered parts, or describe one."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import IMPORTS
from tfkit.cli.terminal import echo_json
from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES, REGISTRY, UnknownPart
from tfkit.core.synonyms import nearest, part_for

if TYPE_CHECKING:
    from tfkit.core.component import Component


@click.command("parts")
@click.argument("slot", required=False)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--matrix", is_flag=True, help="Print which parts can be combined, and why others cannot.")
@click.option("--check", is_flag=True, help="Run the contract checks on the parts of SLOT, or only on NAME.")
@click.option(
    "--verify",
    multiple=True,
    metavar="FILE_OR_MODULE",
    help="Import custom parts and run the contract checks on them, filtered by SLOT and NAME; repeatable.",
)
@IMPORTS
@click.pass_context
def command(
    ctx: click.Context,
    slot: str | None,
    name: str | None,
    as_json: bool,
    matrix: bool,
    check: bool,
    verify: tuple[str, ...],
    imports: tuple[str, ...],
) -> None:
    """List the registered parts of all slots or of one SLOT, or describe the part NAME.

    The contract checks test the promises of a part in small models: that it is causal, that decoding from a cache
    equals a single pass, that it ignores padding, and so on. Exit status 1: a promise is broken.
    """
    from tfkit.cli.main import NO, WRONG

    options = {"--matrix": matrix, "--check": check, "--verify": bool(verify)}
    used = [option for option, is_given in options.items() if is_given]
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} cannot be combined; use one of them")
    if matrix and slot:
        raise click.UsageError("--matrix prints the tables of all slots; remove SLOT")
    if check and not slot:
        raise click.UsageError("--check requires a SLOT, as in: tfkit parts attention --check")
    if as_json and (verify or check):
        raise click.UsageError(f"{used[0]} does not support --json")
    modules, imported = _import(verify)
    imported = _import(imports)[1] and imported
    passed = True
    if verify or check:
        passed = _run_checks(_registered_parts(modules, slot, name) if verify else _parts(slot, name))
    elif matrix:
        from tfkit.core.console import Console
        from tfkit.reports.matrix import all_data, render_matrices

        tables = all_data()
        echo_json(tables) if as_json else render_matrices(tables, Console())
    else:
        _print_parts(slot, name, as_json)
    if not imported or REGISTRY.problems:  # broken plugins were reported when loaded
        ctx.exit(WRONG)
    ctx.exit(0 if passed else NO)


def _import(names: Sequence[str]) -> tuple[list[ModuleType], bool]:
    """Return the imported modules, and True if all succeeded; print failures on standard error."""
    from tfkit.cli.main import complain
    from tfkit.recipe.imports import import_parts

    modules = []
    for name in names:
        try:
            modules.append(import_parts(name))
        except UsageError as error:
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
        raise UsageError(
            f"the modules of --verify register no {' '.join(filter(None, (slot, name)))}, only {available}"
        )
    return chosen


def _run_checks(parts: Sequence[type[Component]]) -> bool:
    """Run the contract checks and print the results. Return True if all pass."""
    from tfkit.contracts.verify import run_verification
    from tfkit.core.console import Console

    return run_verification(parts, Console()) if parts else True


def _print_parts(slot: str | None, name: str | None, as_json: bool) -> None:
    from tfkit.core.console import Console
    from tfkit.reports import parts_table
    from tfkit.reports.parts import part_data, slot_data

    console = Console()
    if slot and name:
        part = _part(_slot(slot), name)
        echo_json(part_data(part)) if as_json else parts_table.render_part(part_data(part, console.width), console)
    elif slot:
        data = slot_data(_slot(slot))
        echo_json(data) if as_json else parts_table.render_slot(data, console)
    else:
        slots = [slot_data(each) for each in CATALOGUES]
        echo_json(slots) if as_json else parts_table.render_slots(slots, console)
