"""Names of the files in a run folder, its labels and tokenizers, and its default name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError
from tfkit.data.tokenizer import Tokenizer
from tfkit.recipe.load import Recipe
from tfkit.storage.checksums import SUMS, write_json
from tfkit.storage.files import NAME as LOCK
from tfkit.storage.files import is_temporary, read_json, remove

RECIPE = "recipe.yaml"
RESOLVED = "resolved.yaml"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"  # with two vocabularies
TOKENIZERS = (TOKENIZER, SOURCE_TOKENIZER, TARGET_TOKENIZER)
LABELS = "labels.json"
SPLITS = "splits.csv"  # the split of each example, if data.split divides them
WEIGHTS = "model.safetensors"
ADAPTER = "adapter.safetensors"  # adapter weights, already merged into WEIGHTS
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "train.log"
ENVIRONMENT = "environment.json"
RUN = "run.json"
EVALUATION = "evaluation.json"
CARD = "README.md"  # written by tfkit or by the user; see runs/card.py

# entries of environment.json
QUANTIZED = "quantized"  # dtype of the quantized weights
QUANTIZED_FROM = "quantized_from"  # path, scores and size of the original run, and the new size
IMPORTED, NOTES = "imported", "notes"  # source of an imported model, and features lost in the import
REMOVED = "removed"  # names of files that a study deleted after training (study.keep)
# files written by tfkit; all others are the user's
OURS = (
    *(RECIPE, RESOLVED, *TOKENIZERS, LABELS, SPLITS, WEIGHTS, ADAPTER, METRICS, LOG),
    *(ENVIRONMENT, RUN, EVALUATION, SUMS),
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
            entries = self.path.iterdir() if self.path.is_dir() else ()
            left = all(entry.name == LOCK or (is_temporary(entry) and not entry.is_dir()) for entry in entries)
            return not self.path.exists() or (self.path.is_dir() and left)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read: {error.strerror}") from None


def save_labels(folder: RunFolder, labels: Sequence[str]) -> None:
    """Write the labels in the order of the logits. Remove the file if there are none."""
    if labels:
        write_json(folder / LABELS, list(labels))
    else:
        remove(folder / LABELS)


def read_labels(folder: RunFolder) -> tuple[str, ...]:
    """Read the labels of a run, or () if it has none. Raise RunError if the file is damaged."""
    if not (folder / LABELS).is_file():
        return ()
    labels = read_json(folder / LABELS)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise RunError(f"{folder / LABELS}: not a list of labels")
    if len(set(labels)) != len(labels):
        raise RunError(f"{folder / LABELS}: contains duplicate labels")
    return tuple(labels)


def tokenizer_files(folder: RunFolder) -> tuple[str, ...]:
    """Return the names of the tokenizer files that the run has."""
    return tuple(name for name in TOKENIZERS if (folder / name).is_file())


def check_tokenizer(folder: RunFolder) -> None:
    """Raise RunError if a tokenizer file of the run is missing."""
    found = tokenizer_files(folder)
    pair = (SOURCE_TOKENIZER, TARGET_TOKENIZER)
    for name in pair if any(name in pair for name in found) else (TOKENIZER,):
        if name not in found:
            raise RunError(f"{folder / name}: is missing")


def load_tokenizer(folder: RunFolder) -> Tokenizer:
    """Read the tokenizer of a run. Raise RunError for a missing file, DataError for an invalid one."""
    check_tokenizer(folder)
    if (folder / TARGET_TOKENIZER).is_file():
        return Tokenizer.load(folder / TARGET_TOKENIZER).beside(Tokenizer.load(folder / SOURCE_TOKENIZER))
    return Tokenizer.load(folder / TOKENIZER)


def save_tokenizer(tokenizer: Tokenizer, folder: RunFolder) -> None:
    """Write the tokenizer of a run. Raise DataError if it cannot be written."""
    if tokenizer.source is tokenizer:
        tokenizer.save(folder / TOKENIZER)
        return
    tokenizer.source.save(folder / SOURCE_TOKENIZER)
    tokenizer.save(folder / TARGET_TOKENIZER)


LONGEST = 80  # characters; longer names are truncated and end with a hash
# keys that do not define a run: duration, device, data and output
LEFT_OUT = re.compile(
    r"generate\b|imports\b|data\.(train|valid|test)\b"
    r"|train\.(steps|max_time|device|keep|patience|metrics|samples|changed_data|evaluate_every|checkpoint_every|validate)\b"
)


def run_name(recipe: Recipe) -> str:
    """Return the recipe name, followed by a word for each variant and each override that defines the run."""
    words = [_variant(text) for text in recipe.variants]
    words += [value_word(key, value) for key, value in recipe.changes.items() if not LEFT_OUT.match(key)]
    name = "-".join([recipe.name, *words])
    if len(name) <= max(LONGEST, len(recipe.name)):
        return name
    digest = _digest([list(recipe.variants), dict(recipe.changes)])
    return f"{name[: LONGEST - len(digest) - 1].rstrip('-')}-{digest}"


def _variant(text: str) -> str:
    """Abbreviate a variant: `rotary` to rotary, `heads=4` to heads4, `norm=rms_norm` to rms_norm."""
    name, equals, value = text.partition("=")
    return value_word(name.strip(), _plain(value.strip())) if equals else _cleaned(name)


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def value_word(key: str, value: Any) -> str:
    """Abbreviate the value of a dotted key to a word that starts with a letter."""
    key = key.rpartition(".")[2]
    if value is None:
        return f"{_cleaned(key)}_none"
    if isinstance(value, bool):
        return _cleaned(key) if value else f"no_{_cleaned(key)}"
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        rest = {name: option for name, option in value.items() if name != "type"}
        return _cleaned(value["type"]) + (f"_{_digest(rest)}" if rest else "")
    if isinstance(value, (int, float)):
        return "s" + str(value) if key == "seed" else f"{_cleaned(key)}{value}"
    if isinstance(value, str):
        word = _cleaned(value.rstrip("/").rpartition("/")[2])  # paths are reduced to their last component
        if word != value and word[:1].isalpha() and len(word) <= 24:
            return f"{word}_{_digest(value)}"
        return word if word[:1].isalpha() and len(word) <= 24 else f"{_cleaned(key)}_{_digest(value)}"
    return f"{_cleaned(key)}_{_digest(value)}"


def _cleaned(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+]+", "_", text).strip("._")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:6]
