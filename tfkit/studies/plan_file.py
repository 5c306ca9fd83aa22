"""study.json: the plan in the folder of a study, which belongs to that study only."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError
from tfkit.storage.files import read_json, write_json
from tfkit.studies.plan import FORMAT, RUNS, Plan

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


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan to the study's folder; raise RunError if that belongs to another study."""
    if (folder / PLAN).exists():
        _check_same(folder, read_plan(folder), plan)
    elif folder.is_dir() and any(not path.name.startswith(".") and path.name != RUNS for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and holds no study; choose another --out")
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, TypeAdapter(Plan).dump_python(plan, mode="json"))


def _check_same(folder: Path, there: Plan, here: Plan) -> None:
    other = "choose another --out"
    if there.identity != here.identity:
        raise RunError(f"{folder}: holds the runs of another study: its baseline or its budget differs; {other}")
    for arm, digest in here.digests.items():
        if there.digests.get(arm, digest) != digest:
            raise RunError(f"{folder}: holds runs of another '{arm}' than this study's; {other}")
