"""study.json: the plan in the folder of a study, which belongs to that study only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError
from tfkit.core.output import counted
from tfkit.recipe.text.node import inline
from tfkit.storage.files import read_json, write_json
from tfkit.studies.board import Board
from tfkit.studies.plan import FORMAT, RUNS, Plan, runs_of

PLAN = "study.json"


def read_plan(folder: Path) -> Plan:
    """Read the plan in a study's folder; raise RunError if it is missing or invalid."""
    file = folder / PLAN
    if not file.is_file():
        raise RunError(f"{file}: is missing: {folder} holds no study")
    data = read_json(file)
    if not isinstance(data, dict):
        raise RunError(f"{file}: holds no plan of a study")
    try:
        plan = TypeAdapter(Plan).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{file}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    problem = _plan_problem(plan)
    if problem:
        raise RunError(f"{file}: {problem}")
    return plan


def _plan_problem(plan: Plan) -> str:
    """Return the fault of a plan, which may have been edited; empty if there is none."""
    if plan.format != FORMAT:
        return f"format: {plan.format} is not known here, which reads {FORMAT}"
    empty = [name for name in ("arms", "seeds", "grid", "measure") if not getattr(plan, name)]
    if empty:
        return f"{' and '.join(empty)}: must not be empty"
    known: set[str] = set()
    for arm in plan.arms:
        if arm.same_as and arm.same_as not in known:
            return f"arms: '{arm.name}' is the same as '{arm.same_as}', which does not come before it"
        known.add(arm.name)
    unknown = [side for claim in plan.claims for side in claim.sides if side not in known]
    unknown += [claim.on for claim in plan.claims if claim.on not in plan.measure]
    return f"claims: '{unknown[0]}' is not compared" if unknown else ""


def keep_plan(folder: Path, plan: Plan) -> Plan:
    """Write the plan to the study's folder and return it with its date and its changes after results were seen.

    Raises RunError if the folder belongs to another study.
    """
    plan = replace(plan, made=datetime.now().astimezone().isoformat(timespec="seconds"))
    if (folder / PLAN).exists():
        there = read_plan(folder)
        _check_same(folder, there, plan)
        plan = replace(plan, made=there.made, changed=(*there.changed, *_changes(folder, there, plan)))
    elif folder.is_dir() and any(not path.name.startswith(".") and path.name != RUNS for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and holds no study; choose another --out")
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, TypeAdapter(Plan).dump_python(plan, mode="json"))
    return plan


def _changes(folder: Path, there: Plan, here: Plan) -> Iterator[str]:
    """Describe what a plan changes that was made before some of its runs ended."""
    board = Board(there, folder)
    ended = sum(board.state(run) != "waiting" for run in dict.fromkeys(runs_of(there, board.best())))
    sides = [
        {
            "seeds": list(plan.seeds),
            "variants": [arm.name for arm in plan.arms],
            "measure": list(plan.measure),
            "claims": [f"{claim.says} on {claim.on}" for claim in plan.claims],
            "tune": [dict(values) for values in plan.grid],
            "equal_within": dict(plan.equal_within),
        }
        for plan in (there, here)
    ]
    now = datetime.now().astimezone().isoformat(timespec="minutes")
    for key, before in sides[0].items() if ended else ():
        if before != sides[1][key]:
            yield f"{key}: {inline(before)} -> {inline(sides[1][key])} on {now}, when {counted(ended, 'run')} had ended"


def _check_same(folder: Path, there: Plan, here: Plan) -> None:
    other = "choose another --out"
    if there.identity != here.identity:
        raise RunError(f"{folder}: holds the runs of another study: its baseline or its budget differs; {other}")
    for arm, digest in here.digests.items():
        if there.digests.get(arm, digest) != digest:
            raise RunError(f"{folder}: holds runs of another '{arm}' than this study's; {other}")
