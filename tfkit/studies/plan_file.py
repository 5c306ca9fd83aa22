"""The plan in the folder of a study, study.json, and what `keep` leaves of a run. A folder belongs to one plan."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError
from tfkit.core.output import counted
from tfkit.recipe.text.node import inline
from tfkit.runs.card import drop_prove
from tfkit.runs.checkpoint import Checkpoints, is_removable
from tfkit.runs.folder import ADAPTER, CHECKPOINTS, ENVIRONMENT, REMOVED, WEIGHTS, RunFolder
from tfkit.storage import checksums
from tfkit.storage.files import FolderBusy, FolderLock, read_json, write_json
from tfkit.studies.board import Board
from tfkit.studies.plan import PLAN, RUNS, Plan
from tfkit.studies.settings import Keep

DROPPED: dict[Keep, tuple[str, ...]] = {"scores": (CHECKPOINTS, WEIGHTS, ADAPTER), "weights": (CHECKPOINTS,), "all": ()}


def reduce(folder: RunFolder, keep: Keep) -> None:
    """Delete the files of a finished run that are not kept; a no-op while another process uses the run.

    The names are first recorded in environment.json and dropped from the manifest, so that an interrupted call can be
    repeated.
    """
    names = [name for name in DROPPED[keep] if (folder / name).exists()]
    if not names:
        return
    try:
        lock = FolderLock.take(folder.path, None)
    except FolderBusy:
        return
    try:
        removed = sorted({*folder.removed, *names})
        if removed != list(folder.removed):
            checksums.write_json(folder / ENVIRONMENT, {**folder.known, REMOVED: removed})
        with checksums.changing(folder.path, *names):
            if WEIGHTS in names:
                drop_prove(folder)
            for name in names:
                if name != CHECKPOINTS:
                    (folder / name).unlink(missing_ok=True)
                    continue
                for checkpoint in filter(is_removable, Checkpoints(folder / CHECKPOINTS).all()):
                    shutil.rmtree(checkpoint)
                if not any((folder / CHECKPOINTS).iterdir()):  # else it holds files of the user
                    (folder / CHECKPOINTS).rmdir()
    finally:
        lock.release()


def keeps(folder: RunFolder, keep: Keep) -> bool:
    """True if no study has deleted a file of the run that `keep` retains."""
    try:
        return set(folder.removed) <= set(DROPPED[keep])
    except RunError:
        return False


def read_plan(folder: Path) -> Plan:
    """Read the plan in a folder; raise RunError if it is missing or invalid."""
    file = folder / PLAN
    if not file.is_file():
        raise RunError(f"{file}: is missing: {folder} contains no study")
    data = read_json(file)
    if not isinstance(data, dict):
        raise RunError(f"{file}: contains no plan of a study")
    try:
        plan = TypeAdapter(Plan).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{file}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    if plan.problem:
        raise RunError(f"{file}: {plan.problem}")
    return plan


def begun(folder: Path, plan: Plan) -> Plan | None:
    """Return the earlier plan in a folder; None if it is missing or belongs to another study."""
    if not (folder / PLAN).is_file():
        return None
    before = read_plan(folder)
    return before if before.identity == plan.identity else None


def check_free(folder: Path, plan: Plan) -> None:
    """Raise RunError if a folder holds the runs of another plan, or other files."""
    if (folder / PLAN).exists():
        other = plan.other(read_plan(folder))
        if other:
            raise RunError(f"{folder}: holds {other}; choose another --out")
    elif folder.is_dir() and any(not path.name.startswith(".") and path.name != RUNS for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and contains no study; choose another --out")


def keep_plan(folder: Path, plan: Plan) -> Plan:
    """Write the plan to the folder and return it with its date and its changes after results were seen.

    Raise RunError if the folder is not free.
    """
    check_free(folder, plan)
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    plan = replace(plan, made=made)
    if (folder / PLAN).exists():
        before = read_plan(folder)
        changed = (*before.changed, *_changes(folder, before, plan))
        plan = replace(plan, made=before.made, changed=changed, notes=(*plan.notes, *_deleted(folder, plan)))
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, TypeAdapter(Plan).dump_python(plan, mode="json"))
    return plan


def _deleted(folder: Path, plan: Plan) -> Iterator[str]:
    """Describe the runs whose files were deleted under an earlier `study.keep` that kept less."""
    board = Board(plan, folder)
    lost = sum(board.state(run) == "done" and not keeps(board.run_folder(run), plan.keep) for run in board.runs())
    if lost:
        yield f"study.keep: {plan.keep} does not restore the deleted files of {counted(lost, 'finished run')}"


def _changes(folder: Path, before: Plan, after: Plan) -> Iterator[str]:
    """Describe the differences between two plans if runs of the earlier plan have ended."""
    board = Board(before, folder)
    ended = sum(board.state(run) != "waiting" for run in board.runs())
    sides = [
        {
            "seeds": list(plan.seeds),
            "variants": [arm.name for arm in plan.arms if not arm.stage],
            "design": plan.design.asked if plan.design else {},
            "measure": list(plan.measure),
            "claims": [f"{claim.says} on {claim.on}" for claim in plan.claims],
            "tune": [*(dict(values) for values in plan.grid), *plan.more],
            "equal_within": dict(plan.equal_within),
        }
        for plan in (before, after)
    ]
    now = datetime.now().astimezone().isoformat(timespec="minutes")
    for key, value in sides[0].items() if ended else ():
        if value != sides[1][key]:
            yield f"{key}: {inline(value)} -> {inline(sides[1][key])} on {now}, when {counted(ended, 'run')} had ended"
