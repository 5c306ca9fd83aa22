"""Names of the files in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import is_temporary, read_json
from tfkit.storage.locks import NAME as LOCK

RECIPE = "recipe.yaml"
RESOLVED = "resolved.yaml"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"  # with two vocabularies
TOKENIZERS = (TOKENIZER, SOURCE_TOKENIZER, TARGET_TOKENIZER)
LABELS = "labels.json"
WEIGHTS = "model.safetensors"
ADAPTER = "adapter.safetensors"  # adapter weights, already merged into WEIGHTS
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "train.log"
ENVIRONMENT = "environment.json"
RUN = "run.json"
EVALUATION = "evaluation.json"
CURVES = "curves.svg"
CARD = "README.md"  # written by tfkit or by the user; see training/card.py
# entries of environment.json
QUANTIZED = "quantized"  # dtype of the quantized weights
QUANTIZED_FROM = "quantized_from"  # path, scores and size of the original run, and the new size
IMPORTED, NOTES = "imported", "notes"  # source of an imported model, and features lost in the import
REMOVED = "removed"  # names of files that a study deleted after training (study.keep)
# files written by tfkit; all others are the user's
OURS = (
    *(RECIPE, RESOLVED, *TOKENIZERS, LABELS, WEIGHTS, ADAPTER, METRICS, LOG),
    *(ENVIRONMENT, RUN, EVALUATION, CURVES, SUMS),
)
# files published to the hub: a run without its training state
PUBLISHED = (RECIPE, RESOLVED, *TOKENIZERS, LABELS, WEIGHTS, ENVIRONMENT, EVALUATION)


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run: `folder / name` for each name above."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def known(self) -> Mapping[str, Any]:
        """Contents of environment.json. Raise RunError if it cannot be read."""
        known = read_json(self / ENVIRONMENT)
        if not isinstance(known, dict):
            raise RunError(f"{self / ENVIRONMENT}: not a mapping")
        return known

    @property
    def holds_run(self) -> bool:
        """True if tfkit wrote a run here."""
        try:
            return "tfkit" in self.known
        except RunError:
            return False

    @property
    def removed(self) -> tuple[str, ...]:
        """Names of the files that a study deleted from this finished run. Raise RunError if they cannot be read."""
        names = self.known.get(REMOVED)
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def holds_import(self) -> bool:
        """True if the run was imported, not trained."""
        return self.holds_run and IMPORTED in self.known

    @property
    def holds_quantized(self) -> bool:
        """True if the weights were quantized after training."""
        return self.holds_run and QUANTIZED in self.known

    @property
    def is_free(self) -> bool:
        """True if the folder is missing or contains only leftovers of a killed process.

        Raise RunError if it cannot be read.
        """
        try:
            return not self.path.exists() or (self.path.is_dir() and all(map(_is_left, self.path.iterdir())))
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read: {error.strerror}") from None


def _is_left(path: Path) -> bool:
    return path.name == LOCK or (is_temporary(path) and not path.is_dir())
