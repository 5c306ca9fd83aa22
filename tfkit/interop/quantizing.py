"""Quantization of a run: int8 weights, and their effect on the scores."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfkit.core.errors import UsageError
from tfkit.run import Run, load_run
from tfkit.runs.card import write_card
from tfkit.runs.folder import (
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
from tfkit.runs.kept import KEPT, kept_files
from tfkit.runs.record import check_listed, record_all
from tfkit.runs.supply import NEEDS, recorded
from tfkit.runs.weights import Weights, matrices, not_finite, rounded_rows
from tfkit.storage.files import write_json
from tfkit.storage.folders import target_folder, whole_folder

COPIED = (RECIPE, RESOLVED, *TOKENIZERS, LABELS)


@dataclass(frozen=True)
class QuantizedRun:
    """Result of a quantization: weight file sizes, and scores before and after it (empty if there are no data)."""

    folder: Path
    bytes: tuple[int, int]
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        scores = {name: {"before": before, "after": after} for name, (before, after) in self.scores.items()}
        return {
            "run": str(self.folder),
            "bytes": dict(zip(("before", "after"), self.bytes, strict=True)),
            "scores": scores,
        }


def quantize_run(
    run: Run, out: str | Path, force: bool = False, split: str | None = None, limit: int | None = None
) -> QuantizedRun:
    """Write `run` to the folder `out` with matrices and embedding tables in int8, and evaluate both runs.

    `force` renames an existing run to NAME.old. Raises RunError if the folder must not be overwritten, and UsageError
    if the run is already in int8 or has non-finite weights. No files are left behind on failure.
    """
    source = RunFolder(run.folder)
    known = source.known if (source / ENVIRONMENT).is_file() else {}
    if run.folder == run.weights:
        raise UsageError(f"{source}: is only a weight file, not a run folder; use a run folder")
    if run.stores_int8:
        raise UsageError(f"{source}: the weights are already in int8")
    goal = target_folder(run.outside(out), "tfkit run", (ENVIRONMENT, RESOLVED), force)
    own = Weights.of(run.model)
    if names := not_finite(own.tensors):
        raise UsageError(f"{source / WEIGHTS}: {names[0]} contains NaN or infinite values, which cannot be quantized")
    judged = run.recipe.data is not None and run.recipe.objective is not None
    before = _scores(run, split, limit) if judged else {}
    check_listed(source, KEPT)
    with whole_folder(goal) as folder:
        for file in (*(source / name for name in COPIED), *kept_files(source.path)):
            if file.is_file():
                place = folder / file.relative_to(source.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
        stored = {own.tied.get(name, name) for name in matrices(run.model)}
        replace(own, tensors=rounded_rows(own.tensors, stored)).save(folder / WEIGHTS)
        sizes = tuple(file.stat().st_size for file in (source / WEIGHTS, folder / WEIGHTS))
        about = {"run": run.recipe.name, "bytes": sizes, "scores": before}
        write_json(folder / ENVIRONMENT, _environment(run, known, goal.path) | {QUANTIZED_FROM: about})
        record_all(folder)
    quantized = load_run(goal.path, device=str(run.device))
    after = quantized.evaluate(split, limit) if judged else {}
    write_card(RunFolder(goal.path), goal.path.name, quantized.summary)
    return QuantizedRun(goal.path, (sizes[0], sizes[1]), {name: (before[name], after[name]) for name in before})


def _scores(run: Run, split: str | None, limit: int | None) -> dict[str, float]:
    """Return the scores of a run without changing its folder."""
    other = copy.copy(run)
    other.as_saved = False
    return other.evaluate(split, limit)


def _environment(run: Run, known: Mapping[str, object], target: Path) -> dict[str, object]:
    """Return environment.json for the quantized run: a copy of the original, marked as int8."""
    kept = {key: value for key, value in known.items() if key not in ("finished", NEEDS)}
    needs = recorded(run.recipe, target, run.tokenizer.vocab_size if run.recipe.unknown_vocab else None)
    return {**kept, QUANTIZED: "int8"} | ({NEEDS: needs} if needs else {})
