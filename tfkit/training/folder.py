"""A run's folder: the names of what is in it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.core.files import read_json

RECIPE = "recipe.yaml"
RESOLVED = "resolved.yaml"
TOKENIZER = "tokenizer.json"
LABELS = "labels.json"
WEIGHTS = "model.safetensors"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "train.log"
ENVIRONMENT = "environment.json"
EVALUATION = "evaluation.json"
# what --force may remove; whatever else stands in the folder belongs to somebody else
OURS = (RECIPE, RESOLVED, TOKENIZER, LABELS, WEIGHTS, METRICS, LOG, ENVIRONMENT, EVALUATION)


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run; `folder / name` for each of the names above."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def holds_run(self) -> bool:
        """Whether tfkit has written a run here."""
        try:
            return "tfkit" in read_json(self / ENVIRONMENT)
        except (RunError, TypeError):
            return False

    @property
    def holds_import(self) -> bool:
        """Whether the run here was imported, not trained."""
        return self.holds_run and "imported" in read_json(self / ENVIRONMENT)

    @property
    def is_free(self) -> bool:
        """Whether nothing stands in the way of a new run."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def clear(self) -> None:
        """Remove the files of the run that is here, and only those; raises RunError when one cannot be removed."""
        try:
            for name in OURS:
                (self / name).unlink(missing_ok=True)
            if (self / CHECKPOINTS).is_dir():
                shutil.rmtree(self / CHECKPOINTS)
        except OSError as error:
            raise RunError(f"{error.filename}: cannot be removed: {error.strerror}") from None
