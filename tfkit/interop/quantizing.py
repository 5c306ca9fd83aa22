"""A run -> a run whose weights are stored in int8, and what that changes."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfkit.core.errors import UsageError
from tfkit.run import Run, load_run
from tfkit.storage.files import write_json
from tfkit.storage.targets import target_folder, whole_folder
from tfkit.training.card import write_card
from tfkit.training.folder import (
    ENVIRONMENT,
    LABELS,
    QUANTIZED,
    QUANTIZED_FROM,
    RECIPE,
    RESOLVED,
    TOKENIZERS,
    WEIGHTS,
    RunFolder,
)
from tfkit.training.int8 import matrices, rounded_rows
from tfkit.training.kept import KEPT, kept_files
from tfkit.training.needs import NEEDS, recorded
from tfkit.training.record import check_listed, record_all
from tfkit.training.weights import Weights, not_finite

COPIED = (RECIPE, RESOLVED, *TOKENIZERS, LABELS)


@dataclass(frozen=True)
class QuantizedRun:
    """A run in int8: the sizes of the weights' files, and the scores before and after; none of a run without data."""

    folder: Path
    bytes: tuple[int, int]
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        scores = {name: {"before": before, "after": after} for name, (before, after) in self.scores.items()}
        return {
            "run": str(self.folder),
            "bytes": dict(zip(("before", "after"), self.bytes, strict=True)),
            "scores": scores,
        }


def quantize_run(
    run: Run, out: str | Path, force: bool = False, split: str | None = None, limit: int | None = None
) -> QuantizedRun:
    """Write `run` to the folder `out` with the matrices of its layers and tables in int8, and evaluate both.

    `force` renames a run that is there to NAME.old. Raises RunError for a folder that may not be written, with nothing
    left then, and UsageError for a run that is in int8 already or has weights that are not finite.
    """
    source = RunFolder(run.folder)
    known = source.known if (source / ENVIRONMENT).is_file() else {}
    if run.folder == run.weights:
        raise UsageError(f"{source}: is a file of weights alone; give a run's folder")
    if run.stores_int8:
        raise UsageError(f"{source}: its weights are in int8 already")
    if Path(out).resolve() == run.folder.resolve():
        raise UsageError(f"{out}: is the run itself, whose weights training needs; choose another folder")
    goal = target_folder(out, "run of tfkit", (ENVIRONMENT, RESOLVED), force)
    own = Weights.of(run.model)
    if names := not_finite(own.tensors):
        raise UsageError(f"{source / WEIGHTS}: {names[0]} holds NaN or infinite numbers, which have no scale")
    judged = run.recipe.data is not None and run.recipe.objective is not None
    before = _scores(run, split, limit) if judged else {}
    check_listed(source, KEPT)
    with whole_folder(goal) as folder:
        for file in (*(source / name for name in COPIED), *kept_files(source.path)):
            if file.is_file():
                place = folder / file.relative_to(source.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
        replace(own, tensors=rounded_rows(own.tensors, _stored(run, own))).save(folder / WEIGHTS)
        sizes = tuple(file.stat().st_size for file in (source / WEIGHTS, folder / WEIGHTS))
        about = {"run": run.recipe.name, "bytes": sizes, "scores": before}
        write_json(folder / ENVIRONMENT, _environment(run, known, goal.path) | {QUANTIZED_FROM: about})
        record_all(folder)
    made = load_run(goal.path, device=str(run.device))
    after = made.evaluate(split, limit) if judged else {}
    write_card(RunFolder(goal.path), goal.path.name, made.summary)
    return QuantizedRun(goal.path, (sizes[0], sizes[1]), {name: (before[name], after[name]) for name in before})


def _stored(run: Run, own: Weights) -> set[str]:
    """The matrices by the names that their tensors have in the file."""
    return {own.tied.get(name, name) for name in matrices(run.model)}


def _scores(run: Run, split: str | None, limit: int | None) -> dict[str, float]:
    """The scores of a run, whose folder stays as it is."""
    other = copy.copy(run)
    other.as_saved = False
    return other.evaluate(split, limit)


def _environment(run: Run, known: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """environment.json of the new run: that of the old one, with how its weights are stored."""
    kept = {key: value for key, value in known.items() if key not in ("finished", NEEDS)}
    needs = recorded(run.recipe, target, run.tokenizer.vocab_size if run.recipe.unknown_vocab else None)
    return {**kept, QUANTIZED: "int8"} | ({NEEDS: needs} if needs else {})
